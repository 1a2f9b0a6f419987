//! Structures that anybody may have written: for fuzzing, for the property test, and for the replay of the corpus.

use crate::infinihost as ih;
use crate::layout::Rewrite;
use core::fmt::{self, Debug, Write};
use ih::cmd::{CmdStatus, DimmFault, MapEqModifier, QpModifier};
use ih::doorbell as bell;
use ih::eqe::EventType;
use ih::regs::HcrControl;
use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What was written to it, as a number.
struct Digest(u64);

impl Write for Digest {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(())
    }
}

/// A digest of all that `value` says of itself: every field is read for it.
fn said(value: &impl Debug) -> u64 {
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    let _ = write!(digest, "{value:?}"); // a digest takes everything
    digest.0
}

/// Takes the front of `bytes` for a `T`: its fields are what they are, however often they are written again.
fn structure<T>(bytes: &[u8])
where
    T: FromBytes + IntoBytes + Immutable + KnownLayout + Rewrite + Debug + PartialEq,
{
    let Ok((read, _)) = T::read_from_prefix(bytes) else {
        return;
    };
    let again = read.rewritten();
    assert_eq!(
        said(&read),
        said(&again),
        "{read:?} is written as {again:?}"
    );
    assert!(again == again.rewritten(), "{again:?}");
}

/// Takes the front of `bytes` for numbers that registers and doorbells hold.
fn numbers(bytes: &[u8]) {
    let Ok((number, _)) = U64::read_from_prefix(bytes) else {
        return;
    };
    let value = number.get();
    let dword = value as u32;
    macro_rules! decodes {
        ($($name:path = $value:expr),* $(,)?) => {$(
            let read = <$name>::decode($value);
            assert_eq!(<$name>::decode(read.encode()), read);
        )*};
    }
    decodes!(
        bell::SendDoorbell = value,
        bell::ReceiveDoorbell = value,
        bell::CqDoorbell = value,
        bell::EqDoorbell = value,
        bell::MSendDoorbell = value,
        bell::MCqDoorbell = value,
        HcrControl = dword,
        QpModifier = dword,
        MapEqModifier = dword,
        DimmFault = dword,
    );
    let event = EventType(dword as u8);
    assert_eq!(event.mask() != 0, dword as u8 <= 63, "{event:?}");
    said(&(HcrControl::decode(dword), CmdStatus(dword as u8)));
    let token = ih::regs::token_of(dword);
    assert_eq!(ih::regs::token_of(ih::regs::token_dword(token)), token);
    let key = ih::mpt::m_key_of_index(dword);
    assert_eq!(ih::mpt::m_index_of_key(key), dword);
    let index = ih::mpt::sinai_index(dword);
    assert_eq!(ih::mpt::sinai_index(index), index);
}

/// Takes the front of `bytes` for what is not a table of fields alone.
fn others(bytes: &[u8]) {
    if let Ok((cqe, _)) = ih::cqe::Cqe::read_from_prefix(bytes) {
        let error = cqe.as_error();
        assert!(error.as_cqe() == &cqe);
        assert_eq!(cqe.is_error(), matches!(error.opcode(), 0xfe | 0xff));
    }
    if let Ok((group, _)) = ih::mgm::Mgm::read_from_prefix(bytes) {
        let mut again = ih::mgm::Mgm::ZERO;
        again.set_gid(group.gid()).set_next(group.next());
        for (at, member) in group.members().enumerate() {
            again.set_member(at, Some(member));
        }
        assert!(group.members().eq(again.members()));
        assert_eq!((group.gid(), group.next()), (again.gid(), again.next()));
    }
    if let Ok((mailbox, _)) = ih::qp::QpMailbox::read_from_prefix(bytes) {
        let again = ih::qp::QpMailbox::new(mailbox.opt_param_mask(), mailbox.context);
        assert_eq!(again.opt_param_mask(), mailbox.opt_param_mask());
    }
    if let Ok((adapter, _)) = ih::fw::AdapterInfo::read_from_prefix(bytes) {
        let mut again = adapter;
        again.set_board_id(adapter.board_id());
        assert!(again == adapter);
    }
    if let Ok((input, _)) = ih::mad_ifc::MadIfcInput::read_from_prefix(bytes) {
        let mut again = ih::mad_ifc::MadIfcInput::local(input.mad);
        again.info = input.info.rewritten();
        assert_eq!(said(&again.info), said(&input.info));
    }
}

/// Lets everything of this crate that reads bytes or numbers read these, which may be anything. The first byte says as
/// what; the rest is taken for it.
///
/// # Panics
///
/// If what was read is not what is written for it: that is the defect being looked for.
pub fn read_untrusted(bytes: &[u8]) {
    const READERS: &[fn(&[u8])] = &[
        numbers,
        others,
        structure::<ih::av::AddressVector>,
        structure::<ih::cmd::Hcr>,
        structure::<ih::cq::CqContext>,
        structure::<ih::cqe::Cqe>,
        structure::<ih::cqe::ErrorCqe>,
        structure::<ih::dev_lim::DevLim>,
        structure::<bell::DoorbellRecord>,
        structure::<ih::eq::EqContext>,
        structure::<ih::eqe::Eqe>,
        structure::<ih::fw::FwInfo>,
        structure::<ih::fw::DdrInfo>,
        structure::<ih::fw::AdapterInfo>,
        structure::<ih::fw::SysEnResult>,
        structure::<ih::init_hca::InitHca>,
        structure::<ih::mad_ifc::ExtendedInfo>,
        structure::<ih::mpt::Mpt>,
        structure::<ih::mtt::Mtt>,
        structure::<ih::mtt::WriteMttHeader>,
        structure::<ih::port::InitIb>,
        structure::<ih::port::SetIb>,
        structure::<ih::qp::AddressPath>,
        structure::<ih::qp::QpContext>,
        structure::<ih::resize_cq::ResizeCq>,
        structure::<ih::srq::SrqContext>,
        structure::<ih::srq::MSrqContext>,
        structure::<ih::vpm::VpmEntry>,
        structure::<ih::wqe::NextSegment>,
        structure::<ih::wqe::MlxNextSegment>,
        structure::<ih::wqe::DataSegment>,
        structure::<ih::wqe::RemoteAddressSegment>,
        structure::<ih::wqe::AtomicSegment>,
        structure::<ih::wqe::BindSegment>,
        structure::<ih::wqe::UdSegment>,
        structure::<ih::wqe::MUdTail>,
    ];
    if let Some((which, bytes)) = bytes.split_first()
        && let Some(reader) = READERS.get(usize::from(*which) % READERS.len())
    {
        reader(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_read_as_whatever_structure_is_written_again_as_it_was(
            mut bytes in prop::collection::vec(any::<u8>(), 1..=0x201), which in 0..36_u8,
        ) {
            bytes[0] = which;
            read_untrusted(&bytes);
        }
    }

    #[test]
    fn two_things_that_differ_in_one_field_say_so() {
        let mut eqe = ih::eqe::Eqe::ZERO;
        let none = said(&eqe);
        eqe.set_number(1);
        assert_ne!(said(&eqe), none);
    }
}
