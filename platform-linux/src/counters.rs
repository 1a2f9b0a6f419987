//! The counters of an interface, as a list: names and values in one order.

use ib_stack::ipoib::Statistics;

macro_rules! counters {
    ($($group:ident as $prefix:literal { $($name:ident),* $(,)? })*) => {
        /// The names, each a C string.
        pub(crate) const NAMES: [&core::ffi::CStr; COUNT] = [$($(
            match core::ffi::CStr::from_bytes_with_nul(concat!($prefix, stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }
        ),*),*];
        const COUNT: usize = [$($(stringify!($name)),*),*].len();
        /// The values.
        pub(crate) type Values = [u64; COUNT];
        /// Those of one interface.
        pub(crate) const fn values(all: &Statistics) -> Values {
            [$($(all.$group.$name),*),*]
        }
    };
}

counters! {
    link as "" {
        down, bad_address, unreachable, parked_full, paths_full, groups_full, repair, path_queries, joins, leaves,
        sa_failures, bad_answers, stale_answers, failed_wishes, repairs, ups,
    }
    rings as "" {
        sent, sent_bytes, received, received_bytes, received_multicast, own_copies, send_errors, receive_errors,
        malformed, lost_in_reset, no_frame, no_address_handle, refused_posts, stray_completions,
    }
    connected as "connected_" {
        opened, ended, rejected, connections_full, failed_wishes, sent, received, send_errors, receive_errors, too_long,
        no_connection, no_frame, refused_posts, stray_completions,
    }
}
