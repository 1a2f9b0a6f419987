//! The model as a driver sees it, by registers, memory and wire alone.

mod bring_up;
mod datagram;
mod events;
mod rig;
mod verbs;

use rig::*;

/// Spoils something that was right.
type Change<T> = fn(&mut T) -> &mut T;
