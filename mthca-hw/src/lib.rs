//! Driver for the Mellanox InfiniHost HCAs (Tavor, Arbel, Sinai), generic over the platform.
#![no_std]
