//! The command register block (HCR): takes a command in, shows how it ended. infinihost 2.2, 3.1, 3.2.
//!
//! It knows nothing of what commands do. A command that is polled keeps the block until it is done; one that asks for
//! an event gives it back at once.

use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::regs::{HcrControl, token_of};

/// A command as it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub opcode: Opcode,
    /// How, 4 bits.
    pub opcode_modifier: u8,
    /// To which object, mostly.
    pub input_modifier: u32,
    /// Immediate, or the bus address of the input mailbox.
    pub in_param: u64,
    /// Bus address of the output mailbox.
    pub out_param: u64,
    /// To be repeated in the EQE.
    pub token: u16,
    /// Completion is told by an EQE, and not by the block.
    pub event: bool,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// [`CmdStatus::OK`], or why not.
    pub status: CmdStatus,
    /// The immediate result, if it has one.
    pub immediate: Option<u64>,
}

impl Answer {
    /// Refused, or done without a result.
    pub const fn status(status: CmdStatus) -> Self {
        Self {
            status,
            immediate: None,
        }
    }
}

/// What a store to the block did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A dword was latched.
    Latched,
    /// The last dword posted a command.
    Posted(Command),
    /// The block is the device's; the store is lost.
    Busy,
}

/// The seven dwords.
#[derive(Clone, Debug, Default)]
pub struct Hcr {
    dwords: [u32; 7],
    /// The last command asked for an event, and the block will come back only when another is done.
    held: bool,
}

impl Hcr {
    /// A load of dword `index`, at any time.
    pub fn read(&self, index: usize) -> u32 {
        self.dwords.get(index).copied().unwrap_or(0)
    }

    /// The block belongs to the device.
    pub fn busy(&self) -> bool {
        HcrControl::decode(self.dwords[6]).go
    }

    /// A store to dword `index`.
    pub fn write(&mut self, index: usize, value: u32) -> Stored {
        if self.busy() {
            return Stored::Busy;
        }
        let Some(dword) = self.dwords.get_mut(index) else {
            return Stored::Latched;
        };
        *dword = value;
        let control = HcrControl::decode(value);
        if index != 6 || !control.go {
            return Stored::Latched;
        }
        let [in_high, in_low, input_modifier, out_high, out_low, token, _] = self.dwords;
        if control.event {
            self.dwords[6] &= !HcrControl::GO;
        }
        let wide = |high, low| u64::from(high) << 32 | u64::from(low);
        Stored::Posted(Command {
            opcode: control.opcode,
            opcode_modifier: control.opcode_modifier,
            input_modifier,
            in_param: wide(in_high, in_low),
            out_param: wide(out_high, out_low),
            token: token_of(token),
            event: control.event,
        })
    }

    /// The firmware has all the commands it can take: keeps the block of the one just posted, though it asked for an
    /// event.
    pub fn hold(&mut self) {
        self.held = !self.busy();
        self.dwords[6] |= HcrControl::GO;
    }

    /// It can take another.
    pub fn release(&mut self) {
        if core::mem::take(&mut self.held) {
            self.dwords[6] &= !HcrControl::GO;
        }
    }

    /// A polled command is done: result first, then status and GO in one.
    pub fn complete(&mut self, answer: Answer) {
        if let Some(immediate) = answer.immediate {
            self.dwords[3] = (immediate >> 32) as u32;
            self.dwords[4] = immediate as u32;
        }
        let control = HcrControl {
            status: answer.status,
            go: false,
            ..HcrControl::decode(self.dwords[6])
        };
        self.dwords[6] = control.encode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(hcr: &mut Hcr, control: u32) -> Stored {
        for (index, value) in [1, 0x2000, 3, 4, 0x5000, 0xbeef_0000]
            .into_iter()
            .enumerate()
        {
            assert_eq!(hcr.write(index, value), Stored::Latched);
        }
        hcr.write(6, control)
    }

    #[test]
    fn a_polled_command_holds_the_block_until_it_is_done() {
        let mut hcr = Hcr::default();
        let Stored::Posted(command) = post(&mut hcr, 0x0080_3024) else {
            panic!("not posted");
        };
        assert_eq!(
            (command.opcode, command.opcode_modifier),
            (Opcode::MAD_IFC, 3)
        );
        assert_eq!(
            (command.in_param, command.out_param),
            (0x1_0000_2000, 0x4_0000_5000)
        );
        assert_eq!(
            (command.input_modifier, command.token, command.event),
            (3, 0xbeef, false)
        );
        assert_eq!(hcr.read(6), 0x0080_3024);
        assert_eq!(hcr.write(0, 7), Stored::Busy);
        hcr.complete(Answer {
            status: CmdStatus::LAM_NOT_PRE,
            immediate: Some(0x11_0000_0022),
        });
        assert_eq!([3, 4, 6].map(|at| hcr.read(at)), [0x11, 0x22, 0x2200_3024]);
        assert_eq!(hcr.read(0), 1);
    }

    #[test]
    fn a_command_that_asks_for_an_event_gives_the_block_back_at_once() {
        let mut hcr = Hcr::default();
        assert!(matches!(post(&mut hcr, 0x00c0_0031), Stored::Posted(_)));
        assert!(!hcr.busy());
        assert!(matches!(post(&mut hcr, 0x00c0_0031), Stored::Posted(_)));
    }

    #[test]
    fn a_block_that_is_held_comes_back_when_it_is_released() {
        let mut hcr = Hcr::default();
        assert!(matches!(post(&mut hcr, 0x00c0_0031), Stored::Posted(_)));
        hcr.hold();
        assert!(hcr.busy());
        hcr.release();
        assert!(!hcr.busy());
        assert!(matches!(post(&mut hcr, 0x0080_0031), Stored::Posted(_)));
        hcr.hold();
        hcr.release();
        assert!(hcr.busy(), "a polled command keeps it");
    }

    #[test]
    fn without_go_the_last_dword_posts_nothing() {
        assert_eq!(post(&mut Hcr::default(), 0x31), Stored::Latched);
    }
}
