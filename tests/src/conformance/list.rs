//! Makes tests of cases.

/// Makes one `#[test]` of each case, in a module for each group: `conformance!(infinihost, rig, { objects: [case, …] })`.
///
/// `rig` is a function that makes a rig, runs the case that it is given in it, and takes it down again; see
/// [`Rig`](crate::conformance::Rig).
#[macro_export]
macro_rules! conformance {
    ($name:ident, $rig:path, { $($group:ident: [$($case:ident),* $(,)?]),* $(,)? }) => {
        mod $name {
            $(mod $group {
                use super::super::*;
                $(#[test]
                fn $case() {
                    $rig(|rig| $crate::conformance::$group::$case(rig));
                })*
            })*
        }
    };
}
