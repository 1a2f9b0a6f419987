//! The commands of infinihost 3.5 that this driver uses.

use super::{Command, TakesBack};
use hca_abi::infinihost::cmd::{
    Hw2SwMpt, MapEqModifier, NOP_MODIFIER, Opcode, QpModifier, ResizeCqKind, SpecialQp,
    TimeoutClass, ToReset, mad_ifc_flags, mad_ifc_modifier,
};
use hca_abi::infinihost::cq::CqContext;
use hca_abi::infinihost::eq::EqContext;
use hca_abi::infinihost::mgm::Mgm;
use hca_abi::infinihost::mpt::Mpt;
use hca_abi::infinihost::mtt::{Mtt, WriteMttHeader};
use hca_abi::infinihost::qp::QpMailbox;
use hca_abi::infinihost::srq::{MSrqContext, SrqContext};
use hca_abi::infinihost::vpm::VpmEntry;
use zerocopy::{Immutable, IntoBytes};

/// Writes a command down: its row of the reference's table, then what of the value goes where.
macro_rules! command {
    (
        $(#[$doc:meta])*
        $name:ident $(<$life:lifetime>)? = $opcode:ident, $class:ident
        {$($(#[$field_doc:meta])* $field:ident: $ty:ty),* $(,)?}
        $(input $input:ident: $in:ty;)?
        $(output $out:ty;)?
        $(immediate($i:ident) $immediate:expr;)?
        $(modifier($m:ident) $modifier:expr;)?
        $(opcode_modifier($o:ident) $opcode_modifier:expr;)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name $(<$life>)? {$($(#[$field_doc])* pub $field: $ty),*}

        impl $(<$life>)? Command for $name $(<$life>)? {
            const NAME: &'static str = stringify!($opcode);
            const OPCODE: Opcode = Opcode::$opcode;
            const CLASS: TimeoutClass = TimeoutClass::$class;
            type Input = command!(@or_nothing $($in)?);
            type Output = command!(@or_nothing $($out)?);

            fn input(&self) -> &Self::Input {
                command!(@input self $($input)?)
            }
            $(fn immediate(&self) -> u64 { let $i = self; $immediate })?
            $(fn input_modifier(&self) -> u32 { let $m = self; $modifier })?
            $(fn opcode_modifier(&self) -> u8 { let $o = self; $opcode_modifier })?
        }
    };
    (@or_nothing) => { () };
    (@or_nothing $ty:ty) => { $ty };
    (@input $self:ident) => { &() };
    (@input $self:ident $field:ident) => { $self.$field };
}

command! {
    /// Brings up attached memory and firmware. With [`DDR_MEM_ERR`](hca_abi::infinihost::cmd::CmdStatus::DDR_MEM_ERR)
    /// the immediate result says what failed.
    SysEn = SYS_EN, D {}
}

command! {
    /// Undoes [`SysEn`].
    SysDis = SYS_DIS, C {}
}

command! {
    /// Firmware version and areas.
    QueryFw = QUERY_FW, A {}
    output hca_abi::infinihost::fw::FwInfo;
}

command! {
    /// Attached memory.
    QueryDdr = QUERY_DDR, A {}
    output hca_abi::infinihost::fw::DdrInfo;
}

command! {
    /// Turns on memory attached to an HCA of the M-mode. With
    /// [`LAM_NOT_PRE`](hca_abi::infinihost::cmd::CmdStatus::LAM_NOT_PRE) there is none. [`SysDis`] turns it off.
    EnableLam = ENABLE_LAM, C {}
    output hca_abi::infinihost::fw::DdrInfo;
}

/// Blocks that one command maps at most.
pub const BLOCKS: usize = 16;

/// Gives the HCA blocks of host memory; what for is in [`Opcode`]: MAP_FA, MAP_ICM_AUX, MAP_ICM.
#[derive(Clone, Copy, Debug)]
pub struct MapBlocks<const OPCODE: u16> {
    blocks: [VpmEntry; BLOCKS],
    count: usize,
}

impl<const OPCODE: u16> MapBlocks<OPCODE> {
    /// None yet.
    pub const fn new() -> Self {
        Self {
            blocks: [VpmEntry::ZERO; BLOCKS],
            count: 0,
        }
    }

    /// None yet?
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Does one more fit?
    pub const fn has_room(&self) -> bool {
        self.count < BLOCKS
    }

    /// One more. Without room nothing happens.
    pub fn push(&mut self, block: VpmEntry) {
        if let Some(place) = self.blocks.get_mut(self.count) {
            *place = block;
            self.count += 1;
        }
    }
}

impl<const OPCODE: u16> Command for MapBlocks<OPCODE> {
    const NAME: &'static str = match Opcode(OPCODE).name() {
        Some(name) => name,
        None => "mapping of blocks",
    };
    const OPCODE: Opcode = Opcode(OPCODE);
    const CLASS: TimeoutClass = TimeoutClass::B;
    type Input = [VpmEntry; BLOCKS];
    type Output = ();

    fn input(&self) -> &[VpmEntry; BLOCKS] {
        &self.blocks
    }
    fn input_modifier(&self) -> u32 {
        self.count as u32
    }
}

command! {
    /// Starts the firmware in the memory that it was given.
    RunFw = RUN_FW, A {}
}

command! {
    /// Stops it; afterwards the HCA does not touch that memory.
    UnmapFa = UNMAP_FA, B {}
}
impl TakesBack for UnmapFa {}

command! {
    /// Says how much ICM is used; the immediate result is how many pages of auxiliary memory that takes.
    SetIcmSize = SET_ICM_SIZE, A {
        /// Bytes of ICM.
        bytes: u64,
    }
    output Immediate;
    immediate(c) c.bytes;
}

command! {
    /// Takes the auxiliary memory back.
    UnmapIcmAux = UNMAP_ICM_AUX, B {}
}
impl TakesBack for UnmapIcmAux {}

command! {
    /// Takes ICM pages back.
    UnmapIcm = UNMAP_ICM, B {
        /// First byte in ICM.
        address: u64,
        /// Pages of 4 KB.
        pages: u32,
    }
    immediate(c) c.address;
    modifier(c) c.pages;
}
impl TakesBack for UnmapIcm {}

command! {
    /// Limits.
    QueryDevLim = QUERY_DEV_LIM, A {}
    output hca_abi::infinihost::dev_lim::DevLim;
}

command! {
    /// Interrupt pin, board.
    QueryAdapter = QUERY_ADAPTER, A {}
    output hca_abi::infinihost::fw::AdapterInfo;
}

command! {
    /// Starts the HCA with its tables.
    InitHca<'a> = INIT_HCA, D {
        /// Where they are.
        tables: &'a hca_abi::infinihost::init_hca::InitHca,
    }
    input tables: hca_abi::infinihost::init_hca::InitHca;
}

command! {
    /// Stops everything: afterwards the HCA touches no memory.
    CloseHca = CLOSE_HCA, C {}
}
impl TakesBack for CloseHca {}

command! {
    /// Brings up a port.
    InitIb<'a> = INIT_IB, A {
        /// 1 or 2.
        port: u8,
        /// What it may do.
        settings: &'a hca_abi::infinihost::port::InitIb,
    }
    input settings: hca_abi::infinihost::port::InitIb;
    modifier(c) u32::from(c.port);
}

command! {
    /// Takes down a port.
    CloseIb = CLOSE_IB, A {
        /// 1 or 2.
        port: u8,
    }
    modifier(c) u32::from(c.port);
}

command! {
    /// Changes a port's capabilities.
    SetIb<'a> = SET_IB, B {
        /// 1 or 2.
        port: u8,
        /// What to change.
        settings: &'a hca_abi::infinihost::port::SetIb,
    }
    input settings: hca_abi::infinihost::port::SetIb;
    modifier(c) u32::from(c.port);
}

command! {
    /// Makes an MPT entry valid.
    Sw2HwMptEntry<'a> = SW2HW_MPT, B {
        /// Its index.
        index: u32,
        /// Its content.
        entry: &'a Mpt,
    }
    input entry: Mpt;
    modifier(c) c.index;
}

command! {
    /// Makes it invalid: afterwards nothing is reached through it.
    Hw2SwMptEntry = HW2SW_MPT, B {
        /// Its index.
        index: u32,
    }
    modifier(c) c.index;
    opcode_modifier(_c) Hw2SwMpt::WithoutEntry as u8;
}
impl TakesBack for Hw2SwMptEntry {}

command! {
    /// Drops what the HCA has cached of protection and translation entries; ends when no access uses it any more.
    SyncTpt = SYNC_TPT, B {}
}

/// Translations of one WRITE_MTT: with the header, 512 bytes.
pub const MTTS: usize = 62;

/// Input mailbox of [`WriteMtt`].
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct WriteMttMailbox {
    header: WriteMttHeader,
    entries: [Mtt; MTTS],
}

/// Writes translations, an even number of them: an odd one out is followed by a cleared entry. infinihost 3.12.
#[derive(Clone, Copy, Debug)]
pub struct WriteMtt {
    mailbox: WriteMttMailbox,
    count: usize,
}

impl WriteMtt {
    /// None yet, the first at this address.
    pub fn at(address: u64) -> Self {
        let mut header = WriteMttHeader::ZERO;
        header.set_address(address);
        let entries = [Mtt::ZERO; MTTS];
        let mailbox = WriteMttMailbox { header, entries };
        Self { mailbox, count: 0 }
    }

    /// Does one more fit?
    pub const fn has_room(&self) -> bool {
        self.count < MTTS
    }

    /// None yet?
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One more. Without room nothing happens.
    pub fn push(&mut self, entry: Mtt) {
        if let Some(place) = self.mailbox.entries.get_mut(self.count) {
            *place = entry;
            self.count += 1;
        }
    }
}

impl Command for WriteMtt {
    const NAME: &'static str = "WRITE_MTT";
    const OPCODE: Opcode = Opcode::WRITE_MTT;
    const CLASS: TimeoutClass = TimeoutClass::B;
    type Input = WriteMttMailbox;
    type Output = ();

    fn input(&self) -> &WriteMttMailbox {
        &self.mailbox
    }
    fn input_modifier(&self) -> u32 {
        self.count.next_multiple_of(2) as u32
    }
}

command! {
    /// Routes event types to an EQ, or away from it.
    MapEq = MAP_EQ, B {
        /// The EQ.
        eqn: u8,
        /// Bit n: event type n.
        mask: u64,
        /// Away from it.
        unmap: bool,
    }
    immediate(c) c.mask;
    modifier(c) MapEqModifier { eqn: c.eqn, unmap: c.unmap }.encode();
}

command! {
    /// Gives an EQ to the HCA.
    Sw2HwEq<'a> = SW2HW_EQ, A {
        /// Its number.
        eqn: u8,
        /// Its context.
        context: &'a EqContext,
    }
    input context: EqContext;
    modifier(c) u32::from(c.eqn);
}

command! {
    /// Takes it back.
    Hw2SwEq = HW2SW_EQ, A {
        /// Its number.
        eqn: u8,
    }
    output EqContext;
    modifier(c) u32::from(c.eqn);
}

command! {
    /// Gives a CQ to the HCA.
    Sw2HwCq<'a> = SW2HW_CQ, A {
        /// Its number.
        cqn: u32,
        /// Its context.
        context: &'a CqContext,
    }
    input context: CqContext;
    modifier(c) c.cqn;
}

command! {
    /// Takes it back.
    Hw2SwCq = HW2SW_CQ, A {
        /// Its number.
        cqn: u32,
    }
    output CqContext;
    modifier(c) c.cqn;
}
impl TakesBack for Hw2SwCq {}

command! {
    /// Gives a CQ another ring; afterwards the HCA does not touch the old one.
    ResizeCq<'a> = RESIZE_CQ, B {
        /// Its number.
        cqn: u32,
        /// The ring.
        ring: &'a hca_abi::infinihost::resize_cq::ResizeCq,
    }
    input ring: hca_abi::infinihost::resize_cq::ResizeCq;
    modifier(c) c.cqn;
    opcode_modifier(_c) ResizeCqKind::Corrected as u8;
}

/// One of the state transitions that take a context; which one is in [`Opcode`].
#[derive(Clone, Copy, Debug)]
pub struct ModifyQp<'a, const OPCODE: u16> {
    /// The QP.
    pub qpn: u32,
    /// What to change.
    pub mailbox: &'a QpMailbox,
}

impl<const OPCODE: u16> Command for ModifyQp<'_, OPCODE> {
    const NAME: &'static str = match Opcode(OPCODE).name() {
        Some(name) => name,
        None => "QP transition",
    };
    const OPCODE: Opcode = Opcode(OPCODE);
    const CLASS: TimeoutClass = TimeoutClass::C;
    type Input = QpMailbox;
    type Output = ();

    fn input(&self) -> &QpMailbox {
        self.mailbox
    }
    fn input_modifier(&self) -> u32 {
        QpModifier::new(self.qpn).encode()
    }
}

command! {
    /// From any state to ERR.
    QpToError = TO_ERR_QPEE, C {
        /// The QP.
        qpn: u32,
    }
    modifier(c) QpModifier::new(c.qpn).encode();
}

command! {
    /// From RTS to SQD.
    QpToSqd = RTS2SQD_QPEE, C {
        /// The QP.
        qpn: u32,
        /// Tell when it has drained.
        event: bool,
    }
    modifier(c) QpModifier { sqd_event: c.event, ..QpModifier::new(c.qpn) }.encode();
}

command! {
    /// From any state to RESET: afterwards the HCA touches neither queues nor buffers of the QP.
    QpToReset = ERR2RST_QPEE, C {
        /// The QP.
        qpn: u32,
    }
    modifier(c) QpModifier::new(c.qpn).encode();
    opcode_modifier(_c) ToReset::WithoutContext as u8;
}
impl TakesBack for QpToReset {}

command! {
    /// Shows a QP.
    QueryQp = QUERY_QPEE, A {
        /// The QP.
        qpn: u32,
    }
    output QpMailbox;
    modifier(c) QpModifier::new(c.qpn).encode();
}

command! {
    /// Names the special QPs of a kind: of port 1, and the next of port 2. Number 0 releases them.
    ConfSpecialQp = CONF_SPECIAL_QP, B {
        /// SMI or GSI.
        kind: SpecialQp,
        /// Even.
        qpn: u32,
    }
    modifier(c) c.qpn;
    opcode_modifier(c) c.kind as u8;
}

command! {
    /// Hands a MAD to the firmware.
    MadIfc<'a> = MAD_IFC, C {
        /// Port that it is for.
        port: u8,
        /// LID that it came from; 0 for our own.
        source_lid: u16,
        /// The M_Key is not checked.
        ignore_mkey: bool,
        /// The B_Key is not checked.
        ignore_bkey: bool,
        /// The mailbox says how it came.
        extended: bool,
        /// The MAD.
        request: &'a hca_abi::infinihost::mad_ifc::MadIfcInput,
    }
    input request: hca_abi::infinihost::mad_ifc::MadIfcInput;
    output [u8; 256];
    modifier(c) mad_ifc_modifier(c.port, c.source_lid);
    opcode_modifier(c) {
        let flag = |set, bit| if set { bit } else { 0 };
        flag(c.ignore_mkey, mad_ifc_flags::IGNORE_M_KEY)
            | flag(c.ignore_bkey, mad_ifc_flags::IGNORE_B_KEY)
            | flag(c.extended, mad_ifc_flags::EXTENDED_INFO)
    };
}

command! {
    /// Bucket of a multicast GID: the low 16 bits of the immediate result.
    MgidHash<'a> = MGID_HASH, A {
        /// The GID.
        mgid: &'a [u8; 16],
    }
    input mgid: [u8; 16];
    output Immediate;
}

/// Stands for an output that is not a mailbox but the immediate result.
pub type Immediate = ();

command! {
    /// Reads a multicast entry.
    ReadMgm = READ_MGM, A {
        /// Its index.
        index: u32,
    }
    output Mgm;
    modifier(c) c.index;
}

command! {
    /// Writes a multicast entry.
    WriteMgm<'a> = WRITE_MGM, A {
        /// Its index.
        index: u32,
        /// Its content.
        entry: &'a Mgm,
    }
    input entry: Mgm;
    modifier(c) c.index;
}

command! {
    /// Gives an SRQ to the HCA. T-mode.
    Sw2HwSrq<'a> = SW2HW_SRQ, A {
        /// Its number.
        srqn: u32,
        /// Its context.
        context: &'a SrqContext,
    }
    input context: SrqContext;
    modifier(c) c.srqn;
}

command! {
    /// The same in M-mode.
    Sw2HwMSrq<'a> = SW2HW_SRQ, A {
        /// Its number.
        srqn: u32,
        /// Its context.
        context: &'a MSrqContext,
    }
    input context: MSrqContext;
    modifier(c) c.srqn;
}

command! {
    /// Takes it back. What comes out is a context of either mode.
    Hw2SwSrq = HW2SW_SRQ, A {
        /// Its number.
        srqn: u32,
    }
    output MSrqContext;
    modifier(c) c.srqn;
}
impl TakesBack for Hw2SwSrq {}

command! {
    /// Shows an SRQ. T-mode.
    QuerySrq = QUERY_SRQ, A {
        /// Its number.
        srqn: u32,
    }
    output SrqContext;
    modifier(c) c.srqn;
}

command! {
    /// The same in M-mode.
    QueryMSrq = QUERY_SRQ, A {
        /// Its number.
        srqn: u32,
    }
    output MSrqContext;
    modifier(c) c.srqn;
}

command! {
    /// Sets the limit of an SRQ.
    ArmSrq = ARM_SRQ, B {
        /// Its number.
        srqn: u32,
        /// 0 for none.
        limit: u16,
    }
    immediate(c) u64::from(c.limit);
    modifier(c) c.srqn;
}

command! {
    /// Nothing: the interrupt test.
    Nop = NOP, A {}
    modifier(_c) NOP_MODIFIER;
}
