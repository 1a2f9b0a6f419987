//! Packets. protocols 1.
