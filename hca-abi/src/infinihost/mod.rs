//! The InfiniHost family: MT23108 ("Tavor"), MT25208 ("Arbel") and MT25204 ("Sinai").
//!
//! They speak two interfaces, T-mode (Tavor, and Arbel with compatible firmware) and M-mode (Arbel native, Sinai: no
//! memory of their own). Where a field or a structure exists in one only, its name or its comment says so; what has no
//! such mark is common. Layouts: `docs/reference/infinihost.md`, cited as "infinihost" and the section.

pub mod av;
pub mod cmd;
pub mod cq;
pub mod cqe;
pub mod dev_lim;
pub mod doorbell;
pub mod eq;
pub mod eqe;
pub mod fw;
pub mod init_hca;
pub mod mad_ifc;
pub mod mgm;
pub mod mpt;
pub mod mtt;
pub mod pci;
pub mod port;
pub mod qp;
pub mod regs;
pub mod resize_cq;
pub mod srq;
pub mod vpm;
pub mod wqe;
