//! The model as a driver sees it, by registers, memory and wire alone.

mod bring_up;
mod events;
mod rig;

use rig::*;

/// Spoils something that was right.
type Change<T> = fn(&mut T) -> &mut T;
