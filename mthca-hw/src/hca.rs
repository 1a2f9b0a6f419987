//! An open HCA, and its verbs.
//!
//! The methods of the traits are one line each: what they do is in the file of the object that they are about.

use crate::chip::Chip;
use crate::cq::CqRef;
use crate::eq::Which;
use crate::event::StrayCounts;
use crate::inner::{FATAL, GONE, Inner, Left};
use crate::limits::Limits;
use crate::open::{OpenError, Opening};
use crate::plan::Plan;
use crate::profile::{Interrupts, Profile};
use crate::qp::QpRef;
use crate::srq::SrqRef;
use core::fmt;
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;
use core_ib::platform::{DmaAddr, Placed, Platform, Room, Vectors, Wake};
use core_ib::verbs::{
    Access, AhAttr, AhHandle, AsyncEvent, CqHandle, CqInit, Created, Device, DeviceAttr,
    DeviceCaps, DeviceModify, FmrHandle, FmrInit, Mad256, MadFlags, MadOutcome, MadSource, Mr,
    MrHandle, MrInit, MwHandle, MwKind, PdHandle, PortAttr, PortModify, QpAttr, QpAttrMask,
    QpHandle, QpInfo, QpInit, SrqAttr, SrqHandle, SrqInit, UserHandle, Verbs, VerbsError,
    WholeMemoryKey,
};
use core_ib::{Gid, LKey, Lid, PKey, RKey};
use hca_abi::infinihost::dev_lim::features;

/// An open InfiniHost. Closed when dropped, which blocks; [`Hca::close`] says first whether anything is still in use.
pub struct Hca<'p, P: Platform> {
    rest: Placed<'p, Opening<'p, P>, P>,
    core: ManuallyDrop<Placed<'p, Inner<'p, P>, P>>,
}

impl<P: Platform> fmt::Debug for Hca<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, health) = (self.core.machine.name(), self.core.cmd.health());
        f.debug_struct("Hca")
            .field("name", &name)
            .field("health", health)
            .finish_non_exhaustive()
    }
}

impl<'p, P: Platform> Hca<'p, P> {
    /// Resets and starts the HCA of `machine`, whichever of the family it is. `wake` is woken when there is something to take: completion events,
    /// asynchronous events. After an error the HCA is as it was found, and nothing of the machine's is kept.
    ///
    /// Its ports are down: each comes up with its QP0 ([`QpType::Smi`](core_ib::verbs::QpType), in RTR), which `ib_stack` makes for its hosts.
    ///
    /// Control context; blocks for a second and more. Source: infinihost 9.1.
    pub fn open(machine: &'p P, wake: &'p dyn Wake, profile: &Profile) -> Result<Self, OpenError> {
        let chip = Chip::identify(machine).map_err(|unknown| OpenError {
            step: "PCI function",
            cause: unknown.into(),
        })?;
        let room = Room::new(machine).map_err(|error| OpenError {
            step: "memory of the driver itself",
            cause: error.into(),
        })?;
        let mut rest = room.put(Opening::new(machine, chip, wake, profile));
        rest.bring_up()?;
        match rest.core.take() {
            Some(core) => Ok(Self {
                rest,
                core: ManuallyDrop::new(core),
            }),
            None => {
                // Not reached: a step made it.
                rest.take_down();
                let (step, cause) = ("tables", crate::open::OpenCause::NoInterrupt);
                Err(OpenError { step, cause })
            }
        }
    }

    /// Closes the HCA. `Busy`, and the HCA as it was, while any object lives on it. Control context; blocks.
    pub fn close(self) -> Result<(), (Self, VerbsError)> {
        match self.core.anything_alive() {
            Some(busy) => Err((self, busy)),
            None => Ok(()),
        }
    }

    /// What came from the HCA and fitted nothing that exists. Any context.
    pub fn strays(&self) -> StrayCounts {
        self.core.stray_counts()
    }

    /// What is left of the pools that objects take from. Control context; may block.
    pub fn left(&self) -> Left {
        self.core.left()
    }

    /// Which chip it is. Any context.
    pub fn chip(&self) -> Chip {
        self.core.chip
    }

    /// What the HCA said of itself. Any context.
    pub fn limits(&self) -> &Limits {
        &self.core.limits
    }

    /// Which numbers and tables the driver uses. Any context.
    pub fn plan(&self) -> &Plan {
        &self.core.plan
    }

    /// Number of the interrupt message by which completions of a vector are announced, as the machine counts them: for
    /// who decides on which processor it is taken. `None` without messages, or without such a vector. Vectors share the
    /// first message where the machine has too few. Any context.
    pub fn message_of(&self, vector: u16) -> Option<u16> {
        let there = vector < self.core.profile.completion_vectors;
        let which = Which::Completion(vector);
        (there && self.interrupts() == Interrupts::Messages).then(|| self.core.message_of(which))
    }

    /// How events are announced. Any context.
    pub fn interrupts(&self) -> Interrupts {
        match self.rest.vectors {
            Some(Vectors::Msix { .. }) => Interrupts::Messages,
            Some(Vectors::Intx) => Interrupts::Pin,
            None => Interrupts::None,
        }
    }
}

#[cfg(test)]
impl<'p, P: Platform> Hca<'p, P> {
    pub(crate) fn core_for_tests(&self) -> &Inner<'p, P> {
        &self.core
    }
}

impl<P: Platform> Drop for Hca<'_, P> {
    fn drop(&mut self) {
        self.core.end_everything();
        // SAFETY: taken once, here, and not used afterwards.
        self.rest.core = Some(unsafe { ManuallyDrop::take(&mut self.core) });
        self.rest.take_down();
    }
}

impl<P: Platform> Inner<'_, P> {
    /// Why the HCA cannot be closed.
    fn anything_alive(&self) -> Option<VerbsError> {
        let alive = [
            ("QP", self.qps.in_use()),
            ("SRQ", self.srqs.in_use()),
            ("CQ", self.cqs.in_use()),
            ("MR", self.mrs.in_use()),
            ("AH", self.ahs.in_use()),
            ("MW", self.mws.in_use()),
            ("FMR", self.fmrs.in_use()),
            ("PD", self.pds.in_use()),
            ("user context", self.contexts.in_use()),
        ];
        let (object, holders) = alive.into_iter().find(|(_, count)| *count > 0)?;
        Some(VerbsError::Busy { object, holders })
    }

    /// Ends all objects, in the order of verbs 1.3. Nobody else refers to them.
    fn end_everything(&self) {
        for index in self.qps.live() {
            if let Some(qp) = self.qps.handle_at(index) {
                // Its groups go with the HCA.
                let _ = self.with_qp(qp, |_, control| {
                    control.attachments = 0;
                    Ok(())
                });
                let _ = self.destroy_qp(qp);
            }
        }
        for index in self.srqs.live() {
            let _ = self.srqs.handle_at(index).map(|srq| self.destroy_srq(srq));
        }
        for index in self.mws.live() {
            let _ = self.mws.handle_at(index).map(|mw| self.dealloc_mw(mw));
        }
        for index in self.fmrs.live() {
            let _ = self.fmrs.handle_at(index).map(|fmr| self.end_fmr(fmr));
        }
        for index in self.mrs.live() {
            let _ = self.mrs.handle_at(index).map(|mr| self.dereg_mr(mr));
        }
        for index in self.ahs.live() {
            let _ = self.ahs.handle_at(index).map(|ah| self.destroy_ah(ah));
        }
        for index in self.cqs.live() {
            let _ = self.cqs.handle_at(index).map(|cq| self.destroy_cq(cq));
        }
        for index in self.contexts.live() {
            let context = self.contexts.handle_at(index);
            let _ = context.map(|context| self.dealloc_user(context));
        }
        for index in self.pds.live() {
            let _ = self.pds.handle_at(index).map(|pd| self.dealloc_pd(pd));
        }
    }

    fn caps(&self) -> DeviceCaps {
        let limits = &self.limits;
        let mut caps = DeviceCaps::RC_RNR_NAK | DeviceCaps::CQ_RESIZE | DeviceCaps::FIRMWARE_MADS;
        for (feature, cap) in [
            (features::PKEY_COUNTER, DeviceCaps::BAD_PKEY_COUNTER),
            (features::QKEY_COUNTER, DeviceCaps::BAD_QKEY_COUNTER),
            (features::PATH_MIGRATION, DeviceCaps::PATH_MIGRATION),
            (features::UD_AV_PORT, DeviceCaps::UD_AV_PORT_ENFORCE),
            (features::ATOMICS, DeviceCaps::ATOMICS),
        ] {
            caps.set(cap, limits.can(feature));
        }
        caps.set(DeviceCaps::SRQ, limits.has_srq && self.plan.srq.count > 0);
        caps.set(DeviceCaps::MEMORY_WINDOWS, self.has_windows());
        caps.set(DeviceCaps::FMR, self.has_fmrs());
        let checksums = limits.has_checksums(&self.chip);
        caps.set(DeviceCaps::IP_CHECKSUM, checksums);
        caps
    }

    /// Requests of one work queue of a QP: both queues of one QP can have so many, if no other queue is there.
    pub(crate) fn max_qp_wr(&self) -> u32 {
        let half = self.profile.work_requests / 2;
        self.limits.max_wr.min(half.saturating_sub(1))
    }

    /// Requests of one SRQ.
    pub(crate) fn max_srq_wr(&self) -> u32 {
        let half = self.profile.work_requests / 2;
        self.limits.max_srq_wr.min(half.saturating_sub(1))
    }

    fn query_device(&self) -> DeviceAttr {
        let (limits, profile) = (&self.limits, &self.profile);
        let inline = limits.max_wqe.saturating_sub(16 + 48 + 4);
        DeviceAttr {
            node_guid: self.node.guid,
            sys_image_guid: self.node.system_image,
            fw_version: limits.firmware,
            vendor_id: self.node.vendor,
            vendor_part_id: self.node.part,
            hw_version: self.node.revision,
            port_count: limits.ports,
            caps: self.caps(),
            max_qp: profile.qps,
            max_qp_wr: self.max_qp_wr(),
            max_sge: limits.max_sge,
            max_inline: inline,
            max_cq: profile.cqs,
            max_cqe: limits.max_cqe,
            max_srq: self.plan.srq.count,
            max_srq_wr: self.max_srq_wr(),
            max_srq_sge: self.max_srq_sge(),
            max_mr: profile.mrs,
            max_mr_size: u64::MAX,
            page_sizes: ((1 << 32) - 1) << 12,
            max_pd: profile.pds,
            max_ah: profile.ahs,
            max_mw: if self.has_windows() { profile.mws } else { 0 },
            max_fmr: if self.has_fmrs() { profile.fmrs } else { 0 },
            max_dest_rd_atomic: self.max_dest_rd_atomic(),
            max_rd_atomic: self.max_rd_atomic(),
            max_mcast_groups: 1 << self.plan.log_mcg.saturating_sub(1),
            max_mcast_qp_attach: hca_abi::infinihost::mgm::MEMBERS as u32,
            local_ca_ack_delay: limits.ack_delay,
            completion_vectors: profile.completion_vectors,
        }
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        for (bit, event) in [
            (FATAL, AsyncEvent::DeviceFatal),
            (GONE, AsyncEvent::DeviceGone),
        ] {
            if self.ended.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
                return Some(event);
            }
        }
        for (port, kept) in (1..).zip(&self.ports) {
            if let Some((_, event)) = kept.events.pop() {
                return Some(AsyncEvent::Port(port, event));
            }
        }
        while let Some(index) = self.cq_marks.take() {
            let place = self.cq_places.get(index as usize);
            if let Some((owner, syndrome)) = place.and_then(|place| place.take_error())
                && let Some(cq) = self.cqs.handle_at(index)
                // The next to have the place has its number there before its handle is found.
                && place.is_some_and(|place| place.number() == owner)
            {
                return Some(AsyncEvent::Cq(cq, syndrome));
            }
        }
        while let Some(index) = self.qp_marks.take() {
            let place = self.qp_places.get(index as usize);
            let Some((owner, event)) = place.and_then(|place| place.events.pop()) else {
                continue;
            };
            if place.is_some_and(|place| !place.events.is_empty()) {
                self.qp_marks.set(index);
            }
            if let Some(qp) = self.qps.handle_at(index)
                // The next to have the place has its number there before its handle is found.
                && place.is_some_and(|place| place.number() == owner)
            {
                return Some(AsyncEvent::Qp(qp, event));
            }
        }
        while let Some(index) = self.srq_marks.take() {
            let place = self.srq_places.get(index as usize);
            let Some((owner, event)) = place.and_then(|place| place.events.pop()) else {
                continue;
            };
            if place.is_some_and(|place| !place.events.is_empty()) {
                self.srq_marks.set(index);
            }
            if let Some(srq) = self.srqs.handle_at(index)
                // The next to have the place is its tenant before its handle is found.
                && place.is_some_and(|place| place.tenant() == Some(owner))
            {
                return Some(AsyncEvent::Srq(srq, event));
            }
        }
        None
    }
}

impl<P: Platform> Device for Hca<'_, P> {
    fn name(&self) -> &str {
        self.core.machine.name()
    }
    fn query_device(&self) -> DeviceAttr {
        self.core.query_device()
    }
    fn query_port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        self.core.query_port(port)
    }
    fn query_gid(&self, port: u8, index: u16) -> Result<Gid, VerbsError> {
        self.core.query_gid(port, index)
    }
    fn query_pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError> {
        self.core.query_pkey(port, index)
    }
    fn modify_device(&self, change: &DeviceModify<'_>) -> Result<(), VerbsError> {
        self.core.modify_device(change)
    }
    fn modify_port(&self, port: u8, change: &PortModify) -> Result<(), VerbsError> {
        self.core.modify_port(port, change)
    }

    fn alloc_user(&self) -> Result<UserHandle, VerbsError> {
        self.core.alloc_user()
    }
    fn user_doorbell_page(&self, user: UserHandle) -> Result<u64, VerbsError> {
        self.core.user_doorbell_page(user)
    }
    fn dealloc_user(&self, user: UserHandle) -> Result<(), VerbsError> {
        self.core.dealloc_user(user)
    }
    fn pd_number(&self, pd: PdHandle) -> Result<u32, VerbsError> {
        Ok(self.core.pds.get(pd)?.number)
    }
    fn cq_number(&self, cq: CqHandle) -> Result<u32, VerbsError> {
        Ok(self.core.cqs.get(cq)?.number)
    }
    fn srq_number(&self, srq: SrqHandle) -> Result<u32, VerbsError> {
        Ok(self.core.srqs.get(srq)?.number)
    }

    fn alloc_pd(&self) -> Result<PdHandle, VerbsError> {
        self.core.alloc_pd()
    }
    fn dealloc_pd(&self, pd: PdHandle) -> Result<(), VerbsError> {
        self.core.dealloc_pd(pd)
    }
    fn whole_memory_key(&self, pd: PdHandle) -> Result<WholeMemoryKey, VerbsError> {
        self.core.whole_memory_key(pd)
    }

    fn create_ah(&self, pd: PdHandle, attr: &AhAttr) -> Result<AhHandle, VerbsError> {
        self.core.create_ah(pd, attr)
    }
    fn query_ah(&self, ah: AhHandle) -> Result<AhAttr, VerbsError> {
        self.core.query_ah(ah)
    }
    fn modify_ah(&self, ah: AhHandle, attr: &AhAttr) -> Result<(), VerbsError> {
        self.core.modify_ah(ah, attr)
    }
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), VerbsError> {
        self.core.destroy_ah(ah)
    }

    fn create_cq(&self, init: &CqInit) -> Result<Created<CqHandle>, VerbsError> {
        self.core.create_cq(init)
    }
    fn resize_cq(&self, cq: CqHandle, cqe: u32) -> Result<u32, VerbsError> {
        self.core.resize_cq(cq, cqe)
    }
    fn resize_user_cq(&self, cq: CqHandle, cqe: u32, lkey: LKey) -> Result<u32, VerbsError> {
        self.core.resize_user_cq(cq, cqe, lkey)
    }
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), VerbsError> {
        self.core.destroy_cq(cq)
    }

    fn create_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpInfo, VerbsError> {
        self.core.create_qp(pd, init)
    }
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.core.modify_qp(qp, attr, mask)
    }
    fn query_qp(&self, qp: QpHandle) -> Result<QpAttr, VerbsError> {
        self.core.query_qp(qp)
    }
    fn destroy_qp(&self, qp: QpHandle) -> Result<(), VerbsError> {
        self.core.destroy_qp(qp)
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Created<SrqHandle>, VerbsError> {
        self.core.create_srq(init)
    }
    fn arm_srq(&self, srq: SrqHandle, limit: u32) -> Result<(), VerbsError> {
        self.core.arm_srq(srq, limit)
    }
    fn resize_srq(&self, _: SrqHandle, _: u32) -> Result<u32, VerbsError> {
        Err(VerbsError::Unsupported {
            feature: "resizing an SRQ",
        })
    }
    fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttr, VerbsError> {
        self.core.query_srq(srq)
    }
    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), VerbsError> {
        self.core.destroy_srq(srq)
    }

    unsafe fn reg_mr(&self, pd: PdHandle, init: &MrInit<'_>) -> Result<Mr, VerbsError> {
        self.core.reg_mr(pd, init)
    }
    unsafe fn rereg_mr(
        &self,
        mr: MrHandle,
        pd: Option<PdHandle>,
        init: Option<&MrInit<'_>>,
        access: Option<Access>,
    ) -> Result<Mr, VerbsError> {
        self.core.rereg_mr(mr, pd, init, access)
    }
    fn dereg_mr(&self, mr: MrHandle) -> Result<(), VerbsError> {
        self.core.dereg_mr(mr)
    }

    fn alloc_mw(&self, pd: PdHandle, kind: MwKind) -> Result<(MwHandle, RKey), VerbsError> {
        self.core.alloc_mw(pd, kind)
    }
    fn mw_rkey(&self, mw: MwHandle) -> Result<RKey, VerbsError> {
        self.core.mw_rkey(mw)
    }
    fn dealloc_mw(&self, mw: MwHandle) -> Result<(), VerbsError> {
        self.core.dealloc_mw(mw)
    }

    fn alloc_fmr(&self, pd: PdHandle, init: &FmrInit) -> Result<FmrHandle, VerbsError> {
        self.core.alloc_fmr(pd, init)
    }
    unsafe fn map_fmr(
        &self,
        fmr: FmrHandle,
        pages: &[DmaAddr],
        iova: u64,
    ) -> Result<(LKey, RKey), VerbsError> {
        self.core.map_fmr(fmr, pages, iova)
    }
    fn unmap_fmrs(&self, fmrs: &[FmrHandle]) -> Result<(), VerbsError> {
        self.core.unmap_fmrs(fmrs)
    }
    fn dealloc_fmr(&self, fmr: FmrHandle) -> Result<(), VerbsError> {
        self.core.dealloc_fmr(fmr)
    }

    fn attach_mcast(&self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.core.attach_mcast(qp, mgid, mlid)
    }
    fn detach_mcast(&self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.core.detach_mcast(qp, mgid, mlid)
    }

    fn process_mad(
        &self,
        port: u8,
        flags: MadFlags,
        source: Option<&MadSource>,
        request: &Mad256,
        response: &mut Mad256,
    ) -> Result<MadOutcome, VerbsError> {
        self.core
            .process_mad(port, flags, source, request, response)
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.core.next_async_event()
    }
    fn take_cq_event(&self, cq: CqHandle) -> bool {
        self.core.take_cq_event(cq)
    }
    fn poll_events(&self) {
        self.core.poll_events();
    }
    fn check(&self) -> Result<(), VerbsError> {
        self.core.cmd.health().check()
    }
}

impl<'p, P: Platform> Verbs for Hca<'p, P> {
    type Cq<'a>
        = CqRef<'a, 'p, P>
    where
        Self: 'a;
    type Qp<'a>
        = QpRef<'a, 'p, P>
    where
        Self: 'a;
    type Srq<'a>
        = SrqRef<'a, 'p, P>
    where
        Self: 'a;

    fn cq(&self, cq: CqHandle) -> Result<CqRef<'_, 'p, P>, VerbsError> {
        self.core.cq(cq)
    }
    fn qp(&self, qp: QpHandle) -> Result<QpRef<'_, 'p, P>, VerbsError> {
        self.core.qp(qp)
    }
    fn srq(&self, srq: SrqHandle) -> Result<SrqRef<'_, 'p, P>, VerbsError> {
        self.core.srq(srq)
    }
}
