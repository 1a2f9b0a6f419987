//! InfiniBand management datagrams: SMI and GSI agents, RMPP, SA client, performance management.
#![no_std]
