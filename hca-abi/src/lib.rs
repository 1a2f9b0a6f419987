//! The hardware's own language of InfiniHost and ConnectX HCAs as plain data: registers, commands, contexts, queue entries.
#![no_std]
