//! Management datagrams: the headers of every class and the attributes they carry. protocols 3 and 4.
//!
//! * [`Mad`]: the 256 bytes, and where in them the header and the data of a class are;
//! * [`MadHeader`], [`SaHeader`], [`RmppHeader`], [`VendorHeader`]: what comes before the data;
//! * [`Smp`]: subnet management with its directed route;
//! * the attributes: [`NodeInfo`], [`PortInfo`], [`PathRecord`] and so on, each a value of public fields, with a view
//!   of the same fields beside it (`NodeInfoView`) for who wants only one of them.
//!
//! Any bytes can be read; whether what they say is welcome is for the protocol to decide. Reserved bits are written
//! as zeros.

mod class;
mod codes;
mod header;
mod layout;
mod mcast;
mod node;
mod notice;
mod path;
mod perf;
mod port;
mod sa;
mod smp;
mod switch;
mod tables;

pub use class::{ClassPortInfo, ClassPortInfoView, GmpCapability};
pub use codes::{MKey, MtuCode, Selector, SmKey, TimeCode, VlCode};
pub use header::{
    Attribute, AttributeId, Mad, MadHeader, MadHeaderView, MadStatus, Method, MgmtClass,
    VendorHeader, VendorHeaderView,
};
pub use layout::Layout;
pub use mcast::{JoinState, McMemberRecord, McMemberRecordView};
pub use node::{NodeDescription, NodeDescriptionView, NodeInfo, NodeInfoView, NodeType};
pub use notice::{Notice, NoticeType, NoticeView, SaNotice, SaNoticeView};
pub use path::{PathRecord, PathRecordView};
pub use perf::{CounterSelect, PortCounters, PortCountersView};
pub use port::{
    Capability, Capability2, GuidInfo, GuidInfoView, InitType, LinkSpeed, LinkSpeedExt, LinkWidth,
    PortInfo, PortInfoView, PortPhysState, PortState,
};
pub use sa::{
    ComponentMask, Records, RmppFlags, RmppHeader, RmppHeaderView, RmppStatus, RmppType, SaHeader,
    SaHeaderView,
};
pub use smp::{SmInfo, SmInfoView, SmState, Smp, SmpView};
pub use switch::{
    LinearForwardingTable, LinearForwardingTableView, MulticastForwardingTable,
    MulticastForwardingTableView, SwitchInfo, SwitchInfoView,
};
pub use tables::{
    PKeyTable, PKeyTableView, SlToVlMappingTable, SlToVlMappingTableView, VlArbitrationTable,
    VlArbitrationTableView, VlWeight,
};
