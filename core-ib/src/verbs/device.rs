//! The traits: the control path ([`Device`]) and the data path ([`Verbs`] and what it resolves to).

use super::{
    Access, AhAttr, AhHandle, AsyncEvent, CqHandle, CqInit, FmrHandle, FmrInit, Mr, MrHandle,
    MrInit, MwHandle, MwKind, NotifyKind, PdHandle, PostError, QpAttr, QpAttrMask, QpHandle,
    QpInfo, QpInit, RecvWr, SendWr, SrqAttr, SrqHandle, SrqInit, UserHandle, VerbsError,
    WholeMemoryKey, WorkCompletion,
};
use crate::platform::DmaAddr;
use crate::{Gid, Guid, LKey, Lid, Mtu, PKey, Qpn, RKey, Sl};
use bitflags::bitflags;

bitflags! {
    /// What an HCA can. verbs 2.1.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DeviceCaps: u32 {
        /// Counts bad P_Keys.
        const BAD_PKEY_COUNTER = 1 << 0;
        /// Counts bad Q_Keys.
        const BAD_QKEY_COUNTER = 1 << 1;
        /// Automatic path migration.
        const PATH_MIGRATION = 1 << 2;
        /// A datagram leaves by the QP's port, whatever its address says.
        const UD_AV_PORT_ENFORCE = 1 << 3;
        /// The system image GUID can be set.
        const SYS_IMAGE_GUID = 1 << 4;
        /// RC responders send RNR NAKs.
        const RC_RNR_NAK = 1 << 5;
        /// Shared receive queues.
        const SRQ = 1 << 6;
        /// SRQs can be resized.
        const SRQ_RESIZE = 1 << 7;
        /// CQs can be resized.
        const CQ_RESIZE = 1 << 8;
        /// Memory windows.
        const MEMORY_WINDOWS = 1 << 9;
        /// Legacy fast memory regions.
        const FMR = 1 << 10;
        /// Checksums of IPoIB packets.
        const IP_CHECKSUM = 1 << 11;
        /// Atomics among the QPs of this HCA.
        const ATOMICS = 1 << 12;
        /// A sender can be spared its own multicasts.
        const BLOCK_MULTICAST_LOOPBACK = 1 << 13;
        /// MADs can be handed to the firmware with [`Device::process_mad`].
        const FIRMWARE_MADS = 1 << 14;
    }
}

/// Attributes of an HCA, constant while it is open. verbs 2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Node GUID.
    pub node_guid: Guid,
    /// System image GUID.
    pub sys_image_guid: Guid,
    /// Firmware version: major, minor, sub-minor.
    pub fw_version: [u16; 3],
    /// IEEE OUI, 24 bits.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// Revision.
    pub hw_version: u32,
    /// Ports, 1 or 2.
    pub port_count: u8,
    /// Capabilities.
    pub caps: DeviceCaps,
    /// QPs.
    pub max_qp: u32,
    /// Requests of one work queue.
    pub max_qp_wr: u32,
    /// Entries of one request.
    pub max_sge: u32,
    /// Bytes of inline data of one request.
    pub max_inline: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries of one CQ.
    pub max_cqe: u32,
    /// SRQs.
    pub max_srq: u32,
    /// Requests of one SRQ.
    pub max_srq_wr: u32,
    /// Entries of one SRQ request.
    pub max_srq_sge: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of one region.
    pub max_mr_size: u64,
    /// Bit n: pages of 2^n bytes.
    pub page_sizes: u64,
    /// PDs.
    pub max_pd: u32,
    /// AHs.
    pub max_ah: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Fast memory regions.
    pub max_fmr: u32,
    /// Reads and atomics outstanding at a QP as responder.
    pub max_dest_rd_atomic: u8,
    /// The same as initiator.
    pub max_rd_atomic: u8,
    /// Multicast groups.
    pub max_mcast_groups: u32,
    /// QPs of one group.
    pub max_mcast_qp_attach: u32,
    /// Local CA ACK delay: 4.096 us * 2^n.
    pub local_ca_ack_delay: u8,
    /// Completion vectors.
    pub completion_vectors: u16,
}

/// Attributes of a port. verbs 2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// 1 Down, 2 Init, 3 Armed, 4 Active.
    pub state: u8,
    /// 1 Sleep … 5 LinkUp.
    pub phys_state: u8,
    /// Largest MTU of the port.
    pub max_mtu: Mtu,
    /// MTU of the link.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_table_len: u16,
    /// Entries of the P_Key table.
    pub pkey_table_len: u16,
    /// Bytes of the largest message.
    pub max_msg_size: u32,
    /// Base LID, or 0.
    pub lid: Lid,
    /// The port has 2^LMC LIDs.
    pub lmc: u8,
    /// LID of the master subnet manager.
    pub sm_lid: Lid,
    /// Service level to it.
    pub sm_sl: Sl,
    /// Subnet timeout: 4.096 us * 2^n.
    pub subnet_timeout: u8,
    /// Capability mask of PortInfo.
    pub capability_mask: u32,
    /// Violation counter.
    pub bad_pkey_counter: u16,
    /// Violation counter.
    pub qkey_violation_counter: u16,
    /// VL capability code.
    pub max_vl: u8,
    /// Code of the active width: 1 1X, 2 4X, 4 8X, 8 12X.
    pub active_width: u8,
    /// Code of the active speed: 1 SDR, 2 DDR, 4 QDR.
    pub active_speed: u8,
    /// Upper half of GID 0.
    pub gid_prefix: u64,
}

impl PortAttr {
    /// State Active.
    pub const fn is_active(&self) -> bool {
        self.state == 4
    }
}

/// What to change of an HCA.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceModify<'a> {
    /// New node description, zero-padded.
    pub node_description: Option<&'a [u8; 64]>,
    /// New system image GUID.
    pub sys_image_guid: Option<Guid>,
}

/// What to change of a port: bits set, then bits cleared, in PortInfo's capability mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortModify {
    /// Bits to set.
    pub set_caps: u32,
    /// Bits to clear.
    pub clear_caps: u32,
    /// Reset the Q_Key violation counter.
    pub reset_qkey_counter: bool,
}

/// A MAD.
pub type Mad256 = [u8; 256];

bitflags! {
    /// What the firmware shall not check of a MAD.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MadFlags: u8 {
        /// The M_Key.
        const IGNORE_MKEY = 1;
        /// The B_Key.
        const IGNORE_BKEY = 2;
    }
}

/// How a MAD came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadSource {
    /// The completion of its receive.
    pub wc: WorkCompletion,
    /// The GRH, if the completion says that there is one.
    pub grh: super::Grh40,
}

/// What the firmware made of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadOutcome {
    /// It answers; the response is in the output.
    Reply,
    /// It took note, and there is no answer.
    Consumed,
    /// It rejected the MAD: drop it.
    Rejected,
}

/// What a create call made, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created<H> {
    /// Its name.
    pub handle: H,
    /// Entries, at least those asked for.
    pub size: u32,
}

/// The answer of an HCA without user contexts.
const NO_USERS: Result<u32, VerbsError> = Err(VerbsError::Unsupported {
    feature: "user contexts",
});

/// The control path of an HCA. Object-safe. Methods may block and are for the control context, but for those that
/// say otherwise; calls on one object exclude each other.
///
/// # Errors
///
/// Every method that takes a handle answers [`InvalidHandle`](VerbsError::InvalidHandle) to one that is unknown, destroyed or of
/// another HCA; one that takes a port, [`InvalidPort`](VerbsError::InvalidPort). Methods that need the hardware answer
/// [`DeviceFailed`](VerbsError::DeviceFailed) or [`DeviceGone`](VerbsError::DeviceGone) without reaching it once
/// [`Device::check`] does, [`CommandFailed`](VerbsError::CommandFailed) when it refuses, and
/// [`Platform`](VerbsError::Platform) when the machine does, or when no answer came in time. Methods that make an object
/// answer [`NoResources`](VerbsError::NoResources), which names the entry of the profile, when there is no place for it; those
/// of a feature that the HCA or its driver lacks, [`Unsupported`](VerbsError::Unsupported). What else a method answers
/// stands with it.
pub trait Device: Send + Sync {
    /// As the machine names it.
    fn name(&self) -> &str;
    /// Attributes of the HCA. Any context; never blocks.
    fn query_device(&self) -> DeviceAttr;
    /// Attributes of a port, from the HCA.
    fn query_port(&self, port: u8) -> Result<PortAttr, VerbsError>;
    /// Entry `index` of a port's GID table. `InvalidAttr` beyond its end.
    fn query_gid(&self, port: u8, index: u16) -> Result<Gid, VerbsError>;
    /// Entry `index` of a port's P_Key table. `InvalidAttr` beyond its end.
    fn query_pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError>;
    /// Changes the HCA. On error nothing is changed.
    fn modify_device(&self, change: &DeviceModify<'_>) -> Result<(), VerbsError>;
    /// Changes a port. `InvalidAttr` for capability bits that software may not change.
    fn modify_port(&self, port: u8, change: &PortModify) -> Result<(), VerbsError>;

    /// A context for a user: a UAR page of its own.
    fn alloc_user(&self) -> Result<UserHandle, VerbsError>;
    /// Bus address of the user's doorbell page, to be mapped uncached into the user's address space.
    fn user_doorbell_page(&self, user: UserHandle) -> Result<u64, VerbsError>;
    /// Ends it; `Busy` while an object of the user's is left.
    fn dealloc_user(&self, user: UserHandle) -> Result<(), VerbsError>;
    /// The HCA's number of a PD, which a user writes into address vectors. Any context; never blocks.
    fn pd_number(&self, _pd: PdHandle) -> Result<u32, VerbsError> {
        NO_USERS
    }
    /// The HCA's number of a CQ, which a user writes into doorbells. Any context; never blocks.
    fn cq_number(&self, _cq: CqHandle) -> Result<u32, VerbsError> {
        NO_USERS
    }
    /// The HCA's number of an SRQ, likewise.
    fn srq_number(&self, _srq: SrqHandle) -> Result<u32, VerbsError> {
        NO_USERS
    }

    /// A protection domain.
    fn alloc_pd(&self) -> Result<PdHandle, VerbsError>;
    /// Ends it; `Busy` while anything is in it but its own whole-memory region.
    fn dealloc_pd(&self, pd: PdHandle) -> Result<(), VerbsError>;
    /// The PD's whole-memory region, made at first use, with local rights.
    fn whole_memory_key(&self, pd: PdHandle) -> Result<WholeMemoryKey, VerbsError>;

    /// An address handle. Never blocks; soft interrupt or control context. `InvalidAttr` for what no packet can carry, a
    /// GID index beyond the table, or a GRH that is missing where the address needs one.
    fn create_ah(&self, pd: PdHandle, attr: &AhAttr) -> Result<AhHandle, VerbsError>;
    /// What it was made with. Never blocks.
    fn query_ah(&self, ah: AhHandle) -> Result<AhAttr, VerbsError>;
    /// Changes where it leads; later sends follow. Never blocks. As [`Device::create_ah`] for what is not valid;
    /// `Unsupported` allowed.
    fn modify_ah(&self, ah: AhHandle, attr: &AhAttr) -> Result<(), VerbsError>;
    /// Ends it. Never blocks. Not before the sends that use it have completed (verbs 1.3).
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), VerbsError>;

    /// A completion queue. `InvalidAttr` for no entries, more than `max_cqe`, or a vector that is not there.
    fn create_cq(&self, init: &CqInit) -> Result<Created<CqHandle>, VerbsError>;
    /// Another size, at least `cqe`; gives the size it has then. `InvalidAttr` if it is out of range or less than what waits in
    /// the CQ, `InvalidState` for a user's. On error the CQ is unchanged.
    fn resize_cq(&self, cq: CqHandle, cqe: u32) -> Result<u32, VerbsError>;
    /// The same for a user's CQ, whose new ring lies in the region with this key, of the same PD, and belongs to the HCA,
    /// every entry. Afterwards the HCA writes there alone, and the user copies what it has not polled. As
    /// [`resize_cq`](Self::resize_cq); `InvalidState` for the driver's own.
    fn resize_user_cq(&self, _cq: CqHandle, _cqe: u32, _lkey: LKey) -> Result<u32, VerbsError> {
        NO_USERS
    }
    /// Ends it; `Busy` while a QP uses it or a reference is out.
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), VerbsError>;

    /// A queue pair, in RESET. `InvalidAttr` for sizes beyond [`DeviceAttr`] or a combination that no service has; `Busy` if the
    /// special QP of that port exists.
    fn create_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpInfo, VerbsError>;
    /// Changes state or attributes. `InvalidState` for a transition that is none, `InvalidMask` for attributes that it needs or
    /// forbids, `InvalidAttr` for a value out of range (verbs 3.3 to 3.5: which attributes each transition takes). On error both are
    /// as they were.
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError>;
    /// State and attributes from the hardware.
    fn query_qp(&self, qp: QpHandle) -> Result<QpAttr, VerbsError>;
    /// Ends it. Its completions are taken out of the CQs. `Busy` while attached to a group or a reference is out.
    fn destroy_qp(&self, qp: QpHandle) -> Result<(), VerbsError>;

    /// A shared receive queue. `InvalidAttr` for sizes beyond [`DeviceAttr`].
    fn create_srq(&self, init: &SrqInit) -> Result<Created<SrqHandle>, VerbsError>;
    /// Sets the limit, in requests; the event comes once when fewer are left. `InvalidAttr` for more than its size.
    fn arm_srq(&self, srq: SrqHandle, limit: u32) -> Result<(), VerbsError>;
    /// Another size; gives the size it has then. `InvalidAttr` if it is out of range. On error the SRQ is unchanged.
    fn resize_srq(&self, srq: SrqHandle, max_wr: u32) -> Result<u32, VerbsError>;
    /// Sizes and the limit in force.
    fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttr, VerbsError>;
    /// Ends it; `Busy` while a QP uses it or a reference is out.
    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), VerbsError>;

    /// Registers memory. `InvalidAttr` for a length of 0 or that the pages do not hold, a page size that the HCA does not take,
    /// or remote write or atomic rights without the local one.
    ///
    /// # Safety
    ///
    /// The memory at `init.pages` stays valid and mapped for the device until the region is deregistered, and the
    /// program expects what the rights allow to happen to it.
    unsafe fn reg_mr(&self, pd: PdHandle, init: &MrInit<'_>) -> Result<Mr, VerbsError>;
    /// Registers anew under the same handle: other memory, rights or domain (`None`: the same). The keys may
    /// change. After an error that says so the region is unusable but must still be deregistered.
    ///
    /// # Safety
    ///
    /// As [`Device::reg_mr`].
    unsafe fn rereg_mr(
        &self,
        mr: MrHandle,
        pd: Option<PdHandle>,
        init: Option<&MrInit<'_>>,
        access: Option<Access>,
    ) -> Result<Mr, VerbsError>;
    /// Ends it; when this returns the HCA does not touch the memory. `Busy` while windows are bound.
    fn dereg_mr(&self, mr: MrHandle) -> Result<(), VerbsError>;

    /// A memory window, not bound, and its key.
    fn alloc_mw(&self, pd: PdHandle, kind: MwKind) -> Result<(MwHandle, RKey), VerbsError>;
    /// The key of a window: of type 1, the one that the bind posted last gives it once that is carried out. After a
    /// bind that was refused it is good for nothing until the next. Any context; never blocks.
    fn mw_rkey(&self, _mw: MwHandle) -> Result<RKey, VerbsError> {
        Err(VerbsError::Unsupported {
            feature: "memory windows",
        })
    }
    /// Ends it; unbinds first.
    fn dealloc_mw(&self, mw: MwHandle) -> Result<(), VerbsError>;

    /// A fast memory region, not mapped. `InvalidAttr` for more pages or another page size than the HCA takes.
    fn alloc_fmr(&self, pd: PdHandle, init: &FmrInit) -> Result<FmrHandle, VerbsError>;
    /// Maps pages. No firmware command; never blocks; soft interrupt or control context. `InvalidAttr` for more pages than it was
    /// made for or one that is not aligned; `NoResources` when its maps between two unmaps are used up.
    ///
    /// # Safety
    ///
    /// As [`Device::reg_mr`], until an `unmap_fmrs` that names the region has returned.
    unsafe fn map_fmr(
        &self,
        fmr: FmrHandle,
        pages: &[DmaAddr],
        iova: u64,
    ) -> Result<(crate::LKey, RKey), VerbsError>;
    /// Unmaps a batch; when this returns no old key works.
    fn unmap_fmrs(&self, fmrs: &[FmrHandle]) -> Result<(), VerbsError>;
    /// Ends it; `Busy` while it is mapped.
    fn dealloc_fmr(&self, fmr: FmrHandle) -> Result<(), VerbsError>;

    /// Delivers packets of a multicast group to a UD QP. Attaching twice is once. `InvalidAttr` for another service's QP, or a
    /// GID or LID that is not multicast; `NoResources` when the group, or the table of groups, is full.
    fn attach_mcast(&self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
    /// Ends that. `InvalidAttr` if it was not so.
    fn detach_mcast(&self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;

    /// Hands a MAD to the firmware's agents (SMA, PMA, vendor). `source` is `None` for a query of our own. The
    /// events that a successful Set implies (LID, P_Key, SM change, client reregister) are queued by this call. `Ok` says that
    /// there is an answer: whether the agent did what it was told is the status in it.
    fn process_mad(
        &self,
        port: u8,
        flags: MadFlags,
        source: Option<&MadSource>,
        request: &Mad256,
        response: &mut Mad256,
    ) -> Result<MadOutcome, VerbsError>;

    /// Takes the next asynchronous event. Any context but hard interrupt; never blocks.
    fn next_async_event(&self) -> Option<AsyncEvent>;
    /// Takes the "armed and fired" flag of a CQ. Any context but hard interrupt; never blocks.
    fn take_cq_event(&self, cq: CqHandle) -> bool;
    /// Looks at the event queues now, as an interrupt would. For owners without interrupts, and for those who
    /// suspect a lost one. Any context but hard interrupt; never blocks.
    fn poll_events(&self);
    /// Is the HCA usable? `DeviceFailed` or `DeviceGone` if not. Any context; never blocks.
    fn check(&self) -> Result<(), VerbsError>;
}

/// The data path: references that were resolved once.
pub trait Verbs: Device {
    /// A completion queue.
    type Cq<'a>: CompletionQueue
    where
        Self: 'a;
    /// A queue pair.
    type Qp<'a>: QueuePair
    where
        Self: 'a;
    /// A shared receive queue.
    type Srq<'a>: SharedReceiveQueue
    where
        Self: 'a;

    /// Resolves a CQ. The reference is a holder: `destroy_cq` answers `Busy` while it lives.
    fn cq(&self, cq: CqHandle) -> Result<Self::Cq<'_>, VerbsError>;
    /// Resolves a QP; a holder likewise.
    fn qp(&self, qp: QpHandle) -> Result<Self::Qp<'_>, VerbsError>;
    /// Resolves an SRQ; a holder likewise.
    fn srq(&self, srq: SrqHandle) -> Result<Self::Srq<'_>, VerbsError>;
}

/// A CQ on the data path. Thread or soft interrupt; never blocks, allocates or panics; takes this queue's lock.
pub trait CompletionQueue: Send + Sync {
    /// Fills `into` from the start and returns how many came; fewer than asked for means that the queue was empty
    /// at some moment. What was posted to an HCA that died comes out flushed; an error is the driver's own, as its device
    /// gives it, and none takes completions out.
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, VerbsError>;
    /// Arms the CQ. Completions already there may or may not fire it: arm, then poll until empty. A CQ of a dead HCA
    /// can be armed too: the driver fires it.
    fn req_notify(&self, kind: NotifyKind) -> Result<(), VerbsError>;
    /// Its name.
    fn handle(&self) -> CqHandle;
}

/// A QP on the data path. Thread or soft interrupt; never blocks, allocates or panics; takes the lock of one queue.
pub trait QueuePair: Send + Sync {
    /// Posts in order; the error names the first that was not. One doorbell for all.
    fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError>;
    /// Posts in order; the error names the first that was not.
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;
    /// Number on the wire.
    fn qpn(&self) -> Qpn;
    /// Its name.
    fn handle(&self) -> QpHandle;
}

/// An SRQ on the data path. Thread or soft interrupt; never blocks, allocates or panics; takes this queue's lock.
pub trait SharedReceiveQueue: Send + Sync {
    /// Posts in order; the error names the first that was not.
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;
    /// Its name.
    fn handle(&self) -> SrqHandle;
}

/// `Device` can be used through a reference to a trait object.
const _: fn(&dyn Device) = |_| ();
