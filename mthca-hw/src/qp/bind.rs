//! The bind request of a connected send queue. infinihost 5.6.

use super::send::SendQueue;
use super::wqe::Wqe;
use crate::inner::Inner;
use crate::mw::Bind;
use core_ib::platform::{DmaBuf, Platform};
use core_ib::verbs::{PostCause, SendFlags, SendOp, SendWr};
use hca_abi::infinihost::wqe::{BindSegment, WqeOpcode};

impl<'p, P: Platform> SendQueue<'p, P> {
    /// Writes the segment of a bind. Its entries and its data, if it has any, count for nothing.
    pub(super) fn bind(
        &self,
        core: &Inner<'p, P>,
        memory: &DmaBuf<'p, P>,
        wqe: &mut Wqe,
        wr: &SendWr<'_>,
    ) -> Result<(), PostCause> {
        let SendOp::BindMw {
            mw,
            mr,
            addr,
            length,
            access,
        } = wr.op
        else {
            return Err(PostCause::InvalidOpcode);
        };
        if !core.has_windows() {
            return Err(PostCause::InvalidOpcode);
        }
        if wr.flags.contains(SendFlags::INLINE) {
            return Err(PostCause::InlineTooLong);
        }
        let bind = Bind {
            mw,
            mr,
            addr,
            length,
            access,
        };
        let segment = core.bind_segment(&bind)?;
        memory.write(wqe.end as usize, &segment)?;
        wqe.end = wqe.end.wrapping_add(size_of::<BindSegment>() as u32);
        wqe.opcode = WqeOpcode::BIND;
        Ok(())
    }
}
