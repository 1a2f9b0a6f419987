//! The pages of doorbells: whole stores, pairs of halves, and what is neither. infinihost 2.7, 2.8.
//!
//! A page says what is rung and does not act on it.

use super::variant::Mode;
use core::fmt;
use hca_abi::infinihost::doorbell::{
    CqDoorbell, EqDoorbell, MCqDoorbell, MSendDoorbell, ReceiveDoorbell, SendDoorbell,
};
use std::collections::BTreeMap;

/// A doorbell register of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// At 0x10.
    Send,
    /// At 0x18.
    Receive,
    /// At 0x20.
    Cq,
    /// At 0x28.
    Eq,
}

impl Register {
    fn at(offset: u64) -> Option<Self> {
        Some(match offset & !7 {
            0x10 => Self::Send,
            0x18 => Self::Receive,
            0x20 => Self::Cq,
            0x28 => Self::Eq,
            _ => return None,
        })
    }
}

/// What was rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// T: WQEs were linked into a send queue.
    Send(SendDoorbell),
    /// M: so many WQEs were added to a send queue.
    SendM(MSendDoorbell),
    /// T: WQEs were linked into a receive queue or SRQ.
    Receive(ReceiveDoorbell),
    /// T: consumption or arming of a CQ.
    Cq(CqDoorbell),
    /// M: arming of a CQ.
    Arm(MCqDoorbell),
    /// T: consumption or arming of an EQ.
    Eq(EqDoorbell),
}

impl Doorbell {
    /// What `value` says to a register; in M-mode two of them say nothing. infinihost 2.8, 2.9.
    fn decode(mode: Mode, register: Register, value: u64) -> Option<Self> {
        Some(match (mode, register) {
            (Mode::T, Register::Send) => Self::Send(SendDoorbell::decode(value)),
            (Mode::T, Register::Receive) => Self::Receive(ReceiveDoorbell::decode(value)),
            (Mode::T, Register::Cq) => Self::Cq(CqDoorbell::decode(value)),
            (Mode::T, Register::Eq) => Self::Eq(EqDoorbell::decode(value)),
            (Mode::M, Register::Send) => Self::SendM(MSendDoorbell::decode(value)),
            (Mode::M, Register::Cq) => Self::Arm(MCqDoorbell::decode(value)),
            (Mode::M, Register::Receive | Register::Eq) => return None,
        })
    }
}

/// What a store did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A doorbell was rung.
    Rung(Doorbell),
    /// The first half of a doorbell is latched.
    FirstHalf,
    /// Nothing is there; the hardware ignores it.
    Unmodelled,
}

/// A store that no driver makes, and that rings nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UarError {
    /// Neither 32 nor 64 bits.
    Width {
        /// Where.
        register: Register,
        /// How many bytes.
        width: usize,
    },
    /// The second half came without the first.
    HalfDoorbell {
        /// Where.
        register: Register,
    },
}

impl fmt::Display for UarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Width { register, width } => write!(
                f,
                "a store of {width} bytes to doorbell {register:?}, which takes 4 or 8"
            ),
            Self::HalfDoorbell { register } => {
                write!(f, "second half of doorbell {register:?} without the first")
            }
        }
    }
}

impl core::error::Error for UarError {}

/// One page: the first halves that wait for a second.
#[derive(Clone, Debug, Default)]
pub struct UarPage {
    halves: [Option<[u8; 4]>; 4],
}

impl UarPage {
    /// A store of `bytes`, as they lie on the bus, at `offset` within the page.
    pub fn write(&mut self, mode: Mode, offset: u64, bytes: &[u8]) -> Result<Effect, UarError> {
        let Some(register) = Register::at(offset) else {
            return Ok(Effect::Unmodelled);
        };
        let half = &mut self.halves[register as usize];
        let [high, low] = match (offset & 7, bytes.as_chunks::<4>()) {
            (0, (&[high, low], [])) => [high, low],
            (0, (&[high], [])) => {
                *half = Some(high);
                return Ok(Effect::FirstHalf);
            }
            (4, (&[low], [])) => {
                let high = half.take();
                [high.ok_or(UarError::HalfDoorbell { register })?, low]
            }
            _ => {
                let width = bytes.len();
                return Err(UarError::Width { register, width });
            }
        };
        let value = u64::from(u32::from_be_bytes(high)) << 32 | u64::from(u32::from_be_bytes(low));
        let doorbell = Doorbell::decode(mode, register, value);
        Ok(doorbell.map_or(Effect::Unmodelled, Effect::Rung))
    }

    fn is_idle(&self) -> bool {
        self.halves == [None; 4]
    }
}

/// All pages of BAR 2. Those without a half doorbell take no room.
#[derive(Clone, Debug)]
pub struct Uar {
    mode: Mode,
    page_shift: u32,
    pages: BTreeMap<u32, UarPage>,
}

impl Uar {
    /// Pages of 2^`page_shift` bytes.
    pub const fn new(mode: Mode, page_shift: u32) -> Self {
        Self {
            mode,
            page_shift,
            pages: BTreeMap::new(),
        }
    }

    /// A store at `offset` of the BAR: to which page, and what it did.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> (u32, Result<Effect, UarError>) {
        let number = offset.checked_shr(self.page_shift).unwrap_or(0) as u32;
        let within = offset - (u64::from(number) << self.page_shift);
        let page = self.pages.entry(number).or_default();
        let effect = page.write(self.mode, within, bytes);
        if page.is_idle() {
            self.pages.remove(&number);
        }
        (number, effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_abi::infinihost::doorbell::{CqCommand, MArm};
    use proptest::prelude::*;

    /// infinihost 13.2: opcode 0x0a, 48 bytes at 0x1040, QP 0x404.
    const SEND: [u8; 8] = [0, 0, 0x10, 0x4a, 0, 4, 4, 3];

    fn sent() -> Effect {
        Effect::Rung(Doorbell::Send(SendDoorbell {
            nda: 0x1040,
            fence: false,
            opcode: 0x0a,
            qpn: 0x404,
            nds: 3,
        }))
    }

    #[test]
    fn a_doorbell_is_one_store_or_two_halves_in_order() {
        let mut page = UarPage::default();
        assert_eq!(page.write(Mode::T, 0x10, &SEND), Ok(sent()));
        assert_eq!(page.write(Mode::T, 0x10, &SEND[..4]), Ok(Effect::FirstHalf));
        assert_eq!(page.write(Mode::T, 0x14, &SEND[4..]), Ok(sent()));
        let register = Register::Send;
        assert_eq!(
            page.write(Mode::T, 0x14, &SEND[4..]),
            Err(UarError::HalfDoorbell { register })
        );
    }

    #[test]
    fn a_16_bit_store_to_a_doorbell_is_refused_by_name() {
        let (register, width) = (Register::Cq, 2);
        let error = UarPage::default()
            .write(Mode::T, 0x20, &[0, 1])
            .unwrap_err();
        assert_eq!(error, UarError::Width { register, width });
        assert_eq!(
            error.to_string(),
            "a store of 2 bytes to doorbell Cq, which takes 4 or 8"
        );
    }

    #[test]
    fn halves_of_different_pages_and_doorbells_do_not_mix() {
        let mut uar = Uar::new(Mode::T, 12);
        assert_eq!(uar.write(0x1010, &SEND[..4]), (1, Ok(Effect::FirstHalf)));
        assert_eq!(
            uar.write(0x3020, &[2, 0, 0, 0x85]),
            (3, Ok(Effect::FirstHalf))
        );
        let register = Register::Send;
        assert_eq!(
            uar.write(0x3014, &SEND[4..]),
            (3, Err(UarError::HalfDoorbell { register }))
        );
        assert_eq!(uar.write(0x1014, &SEND[4..]), (1, Ok(sent())));
        let arm = CqDoorbell {
            command: CqCommand::ARM,
            cqn: 0x85,
            parameter: u32::MAX,
        };
        assert_eq!(
            uar.write(0x3024, &[0xff; 4]),
            (3, Ok(Effect::Rung(Doorbell::Cq(arm))))
        );
        assert!(uar.pages.is_empty());
    }

    #[test]
    fn in_m_mode_the_same_registers_take_other_doorbells_and_two_take_none() {
        // infinihost 13.2: one WQE, 5 posted before; arm CQ 0x85 for any, sequence 1, consumer 7.
        let mut page = UarPage::default();
        let send = MSendDoorbell {
            count: 1,
            counter: 5,
            fence: false,
            opcode: 0x0a,
            qpn: 0x404,
            nds: 3,
        };
        let bytes = [1, 0, 5, 0x0a, 0, 4, 4, 3];
        let rung = Ok(Effect::Rung(Doorbell::SendM(send)));
        assert_eq!(page.write(Mode::M, 0x10, &bytes), rung);
        let arm = MCqDoorbell {
            sequence: 1,
            arm: MArm::ANY,
            cqn: 0x85,
            counter: 7,
        };
        let bytes = [0x12, 0, 0, 0x85, 0, 0, 0, 7];
        let rung = Ok(Effect::Rung(Doorbell::Arm(arm)));
        assert_eq!(page.write(Mode::M, 0x20, &bytes), rung);
        for register in [0x18, 0x28] {
            let ignored = Ok(Effect::Unmodelled);
            assert_eq!(page.write(Mode::M, register, &bytes), ignored);
        }
    }

    proptest! {
        #[test]
        fn no_store_to_any_place_upsets_the_pages(
            stores in prop::collection::vec((0..0x80_0000_u64, prop::collection::vec(any::<u8>(), 0..65)), 0..20),
            shift in 12..16_u32, near: bool, mode in prop::sample::select(vec![Mode::T, Mode::M]),
        ) {
            let mut uar = Uar::new(mode, shift);
            for (offset, bytes) in stores {
                let offset = if near { offset & 0x303c } else { offset };
                let (page, _) = uar.write(offset, &bytes);
                prop_assert_eq!(u64::from(page), offset >> shift);
            }
        }
    }
}
