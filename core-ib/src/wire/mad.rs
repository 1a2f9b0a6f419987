//! Management datagrams. protocols 3 and 4.
