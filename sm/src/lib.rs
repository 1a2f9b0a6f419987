//! An InfiniBand subnet manager and subnet administrator that runs over verbs.
#![no_std]
