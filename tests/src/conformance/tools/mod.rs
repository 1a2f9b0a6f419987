//! What cases are made of: memory that is registered, QPs that are up, waiting, and a hand on the subnet.

mod answers;
mod buffer;
mod link;
mod ports;
mod station;
pub mod steps;
mod wait;

pub use answers::{
    is_busy, is_invalid_attr, is_invalid_handle, is_invalid_mask, is_invalid_port,
    is_invalid_state, is_no_resources, is_not_permitted, is_unsupported,
};
pub use buffer::Buffer;
pub use link::{ALL_RIGHTS, Link};
pub use ports::{
    MGID, MLID, MTU, activate, bring_up, bring_up_pair, change_port, get, info, lid, set,
    set_pkeys, train,
};
pub use station::{GRH, QKEY, Station, qp_init, send_wr};
pub use wait::{ON_ITS_WAY, PATIENCE, QUIET, wait_for};
