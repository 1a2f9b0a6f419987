//! IP over InfiniBand (RFC 4391, RFC 4392).
#![no_std]
