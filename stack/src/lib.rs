//! One InfiniBand host assembled: driver, MAD, SA, IPoIB and, if wanted, a subnet manager, generic over the platform.
#![no_std]
