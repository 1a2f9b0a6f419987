//! Management datagrams: the headers of every class and the attributes they carry. protocols 3 and 4.
//!
//! * [`Mad`]: the 256 bytes, and where in them the header and the data of a class are;
//! * [`MadHeader`], [`SaHeader`], [`RmppHeader`], [`VendorHeader`]: what comes before the data;
//! * [`Smp`]: subnet management with its directed route, and [`Smi`]: the rules by which it goes;
//! * communication management: [`CmReq`], [`CmRep`] and so on, and [`IpCmHeader`];
//! * the attributes: [`NodeInfo`], [`PortInfo`], [`PathRecord`] and so on, each a value of public fields, with a view
//!   of the same fields beside it (`NodeInfoView`) for who wants only one of them.
//!
//! Any bytes can be read; whether what they say is welcome is for the protocol to decide. Reserved bits are written
//! as zeros.

mod class;
mod cm_codes;
mod cm_connect;
mod cm_other;
#[cfg(test)]
mod cm_tests;
mod codes;
mod directed;
mod header;
mod inform;
mod layout;
mod mcast;
mod multipath;
mod node;
mod notice;
mod path;
mod perf;
mod perf_detail;
mod port;
mod records;
mod sa;
mod samples;
mod service;
mod smp;
mod switch;
mod table_records;
mod tables;
mod trap;
mod vendor;

pub use class::{ClassPortInfo, ClassPortInfoView, GmpCapability};
pub use cm_codes::{
    AprStatus, CmService, CmSubject, CommId, Failover, RejReason, ServiceId, SidrStatus,
};
pub use cm_connect::{
    CmDrep, CmDrepView, CmDreq, CmDreqView, CmMra, CmMraView, CmPath, CmPathView, CmRej, CmRejView,
    CmRep, CmRepView, CmReq, CmReqView, CmRtu, CmRtuView,
};
pub use cm_other::{
    CmApr, CmAprView, CmLap, CmLapView, CmSidrRep, CmSidrRepView, CmSidrReq, CmSidrReqView,
    IpCmHeader, IpCmHeaderView,
};
pub use codes::{MKey, MtuCode, Selector, SmKey, TimeCode, VlCode};
pub use directed::{DirectedRoute, Smi, SmiError, SmiStep, Turn};
pub use header::{
    Attribute, AttributeId, BmHeader, BmHeaderView, CcHeader, CcHeaderView, Mad, MadHeader,
    MadHeaderView, MadStatus, Method, MgmtClass, VendorHeader, VendorHeaderView,
};
pub use inform::{InformInfo, InformInfoRecord, InformInfoRecordView, InformInfoView};
pub use layout::Layout;
pub use mcast::{JoinState, McMemberRecord, McMemberRecordView};
pub use multipath::{MultiPathRecord, MultiPathRecordView};
pub use node::{NodeDescription, NodeDescriptionView, NodeInfo, NodeInfoView, NodeType};
pub use notice::{
    Notice, NoticeType, NoticeView, ProducerType, SaNotice, SaNoticeView, TrapNumber,
};
pub use path::{PathRecord, PathRecordView};
pub use perf::{
    CounterSelect, CounterSelectExt, CounterSelectExt2, PortCounters, PortCountersExtended,
    PortCountersExtendedView, PortCountersView,
};
pub use perf_detail::{
    PortFlowCtlCounters, PortFlowCtlCountersView, PortOpRcvCounters, PortOpRcvCountersView,
    PortRcvDataSl, PortRcvDataSlView, PortRcvErrorDetails, PortRcvErrorDetailsView, PortVlOpData,
    PortVlOpDataView, PortVlOpPackets, PortVlOpPacketsView, PortVlXmitFlowCtlUpdateErrors,
    PortVlXmitFlowCtlUpdateErrorsView, PortVlXmitWaitCounters, PortVlXmitWaitCountersView,
    PortXmitDataSl, PortXmitDataSlView, PortXmitDiscardDetails, PortXmitDiscardDetailsView,
    SwPortVlCongestion, SwPortVlCongestionView,
};
pub use port::{
    Capability, Capability2, GuidInfo, GuidInfoView, InitType, LinkSpeed, LinkSpeedExt, LinkWidth,
    PortInfo, PortInfoView, PortPhysState, PortState,
};
pub use records::{
    LinkRecord, LinkRecordView, NodeRecord, NodeRecordView, PortInfoRecord, PortInfoRecordView,
    SmInfoRecord, SmInfoRecordView, SwitchInfoRecord, SwitchInfoRecordView, TraceRecord,
    TraceRecordView,
};
pub use sa::{
    ComponentMask, Record, Records, RmppFlags, RmppHeader, RmppHeaderView, RmppStatus, RmppType,
    SaHeader, SaHeaderView,
};
pub use samples::{
    PortSamplesControl, PortSamplesControlView, PortSamplesResult, PortSamplesResultView,
    SampleCounter, SampleStatus,
};
pub use service::{
    ServiceAssociationRecord, ServiceAssociationRecordView, ServiceRecord, ServiceRecordView,
};
pub use smp::{SmInfo, SmInfoView, SmState, Smp, SmpView};
pub use switch::{
    LinearForwardingTable, LinearForwardingTableView, MulticastForwardingTable,
    MulticastForwardingTableView, RandomEntry, RandomEntryView, RandomForwardingTable,
    RandomForwardingTableView, SwitchInfo, SwitchInfoView,
};
pub use table_records::{
    GuidInfoRecord, GuidInfoRecordView, LinearForwardingTableRecord,
    LinearForwardingTableRecordView, MulticastForwardingTableRecord,
    MulticastForwardingTableRecordView, PKeyTableRecord, PKeyTableRecordView,
    RandomForwardingTableRecord, RandomForwardingTableRecordView, SlToVlMappingTableRecord,
    SlToVlMappingTableRecordView, VlArbitrationTableRecord, VlArbitrationTableRecordView,
};
pub use tables::{
    PKeyTable, PKeyTableView, SlToVlMappingTable, SlToVlMappingTableView, VlArbitrationTable,
    VlArbitrationTableView, VlWeight, VlWeightView,
};
pub use trap::{
    ChangeFlags, GidTrap, GidTrapView, KeyTrap, KeyTrapView, LocalChangesTrap,
    LocalChangesTrapView, MKeyTrap, MKeyTrapView, PortTrap, PortTrapView, SwitchPKeyTrap,
    SwitchPKeyTrapView, SwitchTrap, SwitchTrapView, SystemImageTrap, SystemImageTrapView,
    TrapDetails,
};
pub use vendor::{
    ExtendedPortInfo, ExtendedPortInfoView, LedInfo, LedInfoView, MlnxLinkSpeed, VendorDiag,
    VendorDiagView,
};
