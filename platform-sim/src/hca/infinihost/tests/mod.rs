//! The model as a driver sees it, by registers, memory and wire alone.

mod bring_up;
mod chains;
mod checksums;
mod completions;
mod connected;
mod counters;
mod datagram;
mod events;
mod fmr;
mod groups;
mod hostile;
mod keys;
mod lent;
mod management;
mod memfree;
mod option_rom;
mod pairs;
mod remote;
mod rig;
mod rings;
mod shared;
mod states;
mod verbs;
mod windows;
mod wired;

use rig::*;

/// Spoils something that was right.
type Change<T> = fn(&mut T) -> &mut T;
