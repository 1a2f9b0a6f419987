//! How the management attributes are described: one table for each, like those of the reference.
//!
//! [`layout!`](layout) makes from a table a *value* (a struct with public fields) and a *view* (a cast over bytes
//! whose methods have the names of the fields). A field that overlaps another or leaves the structure does not
//! compile. Every pattern of bytes can be read; what is written has zeros wherever the table says nothing.

use crate::types::{Gid, Guid, Lid, PKey, Psn, QKey, Qpn, Rate, Sl};
use crate::wire::{FlowLabel, WireError};

/// A value with a fixed place for each field. Reading fails for want of bytes alone, writing for want of room alone.
pub trait Layout: Copy {
    /// As the reference calls it; appears in errors.
    const NAME: &'static str;
    /// Bytes that it takes.
    const SIZE: usize;
    /// One byte for each of the structure, with a bit set wherever a field has one.
    const MEANING: &'static [u8];

    /// Reads the first [`SIZE`](Self::SIZE) bytes.
    fn read(bytes: &[u8]) -> Result<Self, WireError>;
    /// Writes all of the first [`SIZE`](Self::SIZE) bytes, reserved ones as zeros. A number too large for its field
    /// loses its upper bits.
    fn write(&self, bytes: &mut [u8]) -> Result<(), WireError>;
}

/// Something that fills whole bytes.
pub trait Field: Copy {
    /// How many bytes.
    const LEN: usize;
    /// The bits that have a meaning; repeats as often as it fits.
    const MEANING: &'static [u8] = &[0xff];
    /// From the first `LEN` bytes; missing ones count as zeros.
    fn get(bytes: &[u8]) -> Self;
    /// To the first `LEN` bytes, as far as there are any.
    fn put(self, bytes: &mut [u8]);

    /// As many of them as the array takes, one after another.
    #[inline]
    fn get_all<const N: usize>(bytes: &[u8]) -> [Self; N] {
        core::array::from_fn(|i| Self::get(tail(bytes, i * Self::LEN)))
    }

    /// Puts all of the array.
    #[inline]
    fn put_all<const N: usize>(all: [Self; N], bytes: &mut [u8]) {
        for (i, item) in all.into_iter().enumerate() {
            item.put(tail_mut(bytes, i * Self::LEN));
        }
    }
}

/// A number that may also stand in a few bits.
pub trait Bits: Copy {
    /// From the low bits.
    fn from_bits(bits: u64) -> Self;
    /// To the low bits; the field keeps as many as it has.
    fn to_bits(self) -> u64;
}

impl<T: Field, const N: usize> Field for [T; N] {
    const LEN: usize = N * T::LEN;
    const MEANING: &'static [u8] = T::MEANING;

    #[inline]
    fn get(bytes: &[u8]) -> Self {
        T::get_all(bytes)
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) {
        T::put_all(self, bytes);
    }
}

impl Field for u8 {
    const LEN: usize = 1;

    #[inline]
    fn get(bytes: &[u8]) -> Self {
        bytes.first().copied().unwrap_or(0)
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) {
        if let Some(byte) = bytes.first_mut() {
            *byte = self;
        }
    }

    #[inline]
    fn get_all<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.first_chunk().copied().unwrap_or([0; N])
    }

    #[inline]
    fn put_all<const N: usize>(all: [u8; N], bytes: &mut [u8]) {
        if let Some(place) = bytes.first_chunk_mut() {
            *place = all;
        }
    }
}

/// Makes a number [`Bits`].
macro_rules! bits {
    ($($name:ty, |$from:ident| $make:expr, |$to:ident| $take:expr;)*) => {$(
        impl $crate::wire::mad::layout::Bits for $name {
            #[inline]
            fn from_bits($from: u64) -> Self {
                $make
            }

            #[inline]
            fn to_bits(self) -> u64 {
                let $to = self;
                $take
            }
        }
    )*};
}
pub(crate) use bits;

impl Field for Gid {
    const LEN: usize = 16;

    #[inline]
    fn get(bytes: &[u8]) -> Self {
        Self(<[u8; 16]>::get(bytes))
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) {
        self.0.put(bytes);
    }
}

/// Makes a number of `$len` bytes a [`Field`] and [`Bits`].
macro_rules! number {
    ($($name:ty, $len:literal, |$from:ident| $make:expr, |$to:ident| $take:expr;)*) => {$(
        $crate::wire::mad::layout::bits!($name, |$from| $make, |$to| $take;);

        impl $crate::wire::mad::layout::Field for $name {
            const LEN: usize = $len;

            #[inline]
            fn get(bytes: &[u8]) -> Self {
                use $crate::wire::mad::layout::{Bits, load};
                <Self as Bits>::from_bits(load(bytes, 0, $len, $len * 8 - 1, 0))
            }

            #[inline]
            fn put(self, bytes: &mut [u8]) {
                use $crate::wire::mad::layout::{Bits, store};
                store(bytes, 0, $len, $len * 8 - 1, 0, Bits::to_bits(self));
            }
        }
    )*};
}
pub(crate) use number;

bits! {
    u8, |bits| bits as u8, |number| number.into();
    bool, |bits| bits != 0, |flag| flag.into();
    Sl, |bits| Self::new(bits as u8), |sl| sl.get().into();
    FlowLabel, |bits| Self::new(bits as u32), |label| label.get().into();
}

number! {
    u16, 2, |bits| bits as u16, |number| number.into();
    u32, 4, |bits| bits as u32, |number| number.into();
    u64, 8, |bits| bits, |number| number;
    Lid, 2, |bits| Self(bits as u16), |lid| lid.0.into();
    PKey, 2, |bits| Self(bits as u16), |key| key.0.into();
    QKey, 4, |bits| Self(bits as u32), |key| key.0.into();
    Guid, 8, |bits| Self(bits), |guid| guid.0;
    Qpn, 3, |bits| Self::new(bits as u32), |qpn| qpn.get().into();
    Psn, 3, |bits| Self::new(bits as u32), |psn| psn.get().into();
    Rate, 1, |bits| Self(bits as u8), |rate| rate.0.into();
}

/// Ones in bits `high` to `low`.
const fn ones(high: u32, low: u32) -> u64 {
    (u64::MAX >> (63 - (high & 63))) & (u64::MAX << (low & 63))
}

/// Bits `high` to `low` of the big-endian number of `len` (at most 8) bytes at `at`.
#[inline]
pub(crate) fn load(bytes: &[u8], at: usize, len: usize, high: u32, low: u32) -> u64 {
    let number = bytes.iter().skip(at).take(len);
    let number = number.fold(0, |number, &byte| number << 8 | u64::from(byte));
    (number & ones(high, low)) >> low
}

/// Puts `bits` into bits `high` to `low` of that number; the others stay.
#[inline]
pub(crate) fn store(bytes: &mut [u8], at: usize, len: usize, high: u32, low: u32, bits: u64) {
    let mask = ones(high, low);
    let bits = (bits << low) & mask;
    let bytes = bytes.iter_mut().skip(at).take(len);
    for (place, byte) in bytes.rev().enumerate() {
        let shift = 8 * place as u32;
        let (mask, bits) = ((mask >> shift) as u8, (bits >> shift) as u8);
        *byte = (*byte & !mask) | bits;
    }
}

/// The bytes from `at` on, which the table's check has shown to be there.
#[inline]
pub(crate) fn tail(bytes: &[u8], at: usize) -> &[u8] {
    bytes.get(at..).unwrap_or(&[])
}

/// As [`tail`], to write.
#[inline]
pub(crate) fn tail_mut(bytes: &mut [u8], at: usize) -> &mut [u8] {
    bytes.get_mut(at..).unwrap_or(&mut [])
}

/// Adds the bits of one field to the mask of a structure. Runs in the compiler, where a panic is an error of
/// the table: two fields overlap, or one leaves the structure.
pub(crate) const fn mark<const N: usize>(
    mut mask: [u8; N],
    at: usize,
    len: usize,
    meaning: &[u8],
) -> [u8; N] {
    let mut i = 0;
    while i < len {
        let bits = meaning[i % meaning.len()];
        assert!(mask[at + i] & bits == 0, "two fields overlap");
        mask[at + i] |= bits;
        i += 1;
    }
    mask
}

/// As [`mark`], for bits `high` to `low` of a big-endian number of `len` bytes.
pub(crate) const fn mark_bits<const N: usize>(
    mask: [u8; N],
    at: usize,
    len: usize,
    high: u32,
    low: u32,
) -> [u8; N] {
    assert!(low <= high && high < 8 * len as u32, "no such bits");
    let bytes = (ones(high, low) << (64 - 8 * len)).to_be_bytes();
    mark(mask, at, len, &bytes)
}

/// A table of a structure: `field: Type = offset`, or `offset [high:low]` for bits of that byte, or
/// `offset/length [high:low]` for bits of a longer big-endian number. See the module.
macro_rules! layout {
    (@get $type:ty, $bytes:expr, $at:literal) => {
        <$type as $crate::wire::mad::layout::Field>::get(
            $crate::wire::mad::layout::tail($bytes, $at),
        )
    };
    (@get $type:ty, $bytes:expr, $at:literal [$high:literal : $low:literal]) => {
        layout!(@get $type, $bytes, $at / 1 [$high : $low])
    };
    (@get $type:ty, $bytes:expr, $at:literal / $len:literal [$high:literal : $low:literal]) => {
        <$type as $crate::wire::mad::layout::Bits>::from_bits(
            $crate::wire::mad::layout::load($bytes, $at, $len, $high, $low),
        )
    };
    (@put $value:expr, $type:ty, $bytes:expr, $at:literal) => {
        <$type as $crate::wire::mad::layout::Field>::put(
            $value,
            $crate::wire::mad::layout::tail_mut($bytes, $at),
        )
    };
    (@put $value:expr, $type:ty, $bytes:expr, $at:literal [$high:literal : $low:literal]) => {
        layout!(@put $value, $type, $bytes, $at / 1 [$high : $low])
    };
    (@put $value:expr, $type:ty, $bytes:expr, $at:literal / $len:literal [$high:literal : $low:literal]) => {
        $crate::wire::mad::layout::store(
            $bytes, $at, $len, $high, $low,
            <$type as $crate::wire::mad::layout::Bits>::to_bits($value),
        )
    };
    (@mark $mask:expr, $type:ty, $at:literal) => {{
        use $crate::wire::mad::layout::{Field, mark};
        mark($mask, $at, <$type as Field>::LEN, <$type as Field>::MEANING)
    }};
    (@mark $mask:expr, $type:ty, $at:literal [$high:literal : $low:literal]) => {
        $crate::wire::mad::layout::mark_bits($mask, $at, 1, $high, $low)
    };
    (@mark $mask:expr, $type:ty, $at:literal / $len:literal [$high:literal : $low:literal]) => {
        $crate::wire::mad::layout::mark_bits($mask, $at, $len, $high, $low)
    };
    (@id $name:ident) => {};
    (@id $name:ident $id:expr) => {
        impl $crate::wire::mad::Attribute for $name {
            const ID: $crate::wire::mad::AttributeId = $id;
        }
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident, $view:ident: $size:literal $(, $id:expr)?;
        $(
            $(#[$field_meta:meta])*
            $field:ident: $type:ty = $at:literal $(/ $len:literal)? $([$high:literal : $low:literal])?,
        )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $(
                $(#[$field_meta])*
                #[doc = concat!("\n\nAt ", $at $(, "/", $len)? $(, " \\[", $high, ":", $low, "\\]")?, ".")]
                pub $field: $type,
            )*
        }

        #[doc = concat!("[`", stringify!($name), "`] as it lies in a packet: any ", $size, " bytes are a valid view.")]
        #[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
                 zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(transparent)]
        pub struct $view([u8; $size]);
        static_assertions::const_assert_eq!(size_of::<$view>(), $size);

        impl $view {
            /// Splits bytes into the view and what follows.
            pub fn split(bytes: &[u8]) -> Result<(&Self, &[u8]), $crate::wire::WireError> {
                <Self as zerocopy::FromBytes>::ref_from_prefix(bytes).map_err(|_| {
                    let (header, need, have) = (stringify!($name), $size, bytes.len());
                    $crate::wire::WireError::Truncated { header, need, have }
                })
            }

            $(
                $(#[$field_meta])*
                #[doc = concat!("\n\nAt ", $at $(, "/", $len)? $(, " \\[", $high, ":", $low, "\\]")?, ".")]
                pub fn $field(&self) -> $type {
                    layout!(@get $type, &self.0, $at $(/ $len)? $([$high : $low])?)
                }
            )*
        }

        impl From<&$view> for $name {
            fn from(view: &$view) -> Self {
                Self { $($field: view.$field(),)* }
            }
        }

        impl $name {
            /// Bytes that it takes.
            pub const SIZE: usize = $size;
            const MASK: [u8; $size] = {
                let mask = [0; $size];
                $(let mask = layout!(@mark mask, $type, $at $(/ $len)? $([$high : $low])?);)*
                mask
            };

            /// What the bytes mean.
            pub fn from_bytes(bytes: &[u8; $size]) -> Self {
                Self::from(&$view(*bytes))
            }

            /// As it goes on the wire.
            pub fn to_bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $(layout!(@put self.$field, $type, &mut bytes, $at $(/ $len)? $([$high : $low])?);)*
                bytes
            }
        }

        impl $crate::wire::mad::Layout for $name {
            const NAME: &'static str = stringify!($name);
            const SIZE: usize = $size;
            const MEANING: &'static [u8] = &Self::MASK;

            fn read(bytes: &[u8]) -> Result<Self, $crate::wire::WireError> {
                $view::split(bytes).map(|(view, _)| view.into())
            }

            fn write(&self, bytes: &mut [u8]) -> Result<(), $crate::wire::WireError> {
                let have = bytes.len();
                let Some(place) = bytes.first_chunk_mut() else {
                    let (header, need) = (stringify!($name), $size);
                    return Err($crate::wire::WireError::NoSpace { header, need, have });
                };
                *place = self.to_bytes();
                Ok(())
            }
        }

        impl $crate::wire::mad::layout::Field for $name {
            const LEN: usize = $size;
            const MEANING: &'static [u8] = &Self::MASK;

            #[inline]
            fn get(bytes: &[u8]) -> Self {
                Self::from_bytes(&<[u8; $size]>::get(bytes))
            }

            #[inline]
            fn put(self, bytes: &mut [u8]) {
                self.to_bytes().put(bytes);
            }
        }

        impl Default for $name {
            /// All zeros.
            fn default() -> Self {
                Self::from_bytes(&[0; $size])
            }
        }

        layout!(@id $name $($id)?);
    };
}
pub(crate) use layout;

/// Constants of an open set of numbers: `NAME = value;`, documented by what follows or by the number itself.
macro_rules! constants {
    ($type:ident: $($(#[$meta:meta])* $name:ident = $value:literal;)*) => {
        impl $type {
            $(
                $(#[$meta])*
                #[doc = concat!("(", $value, ")")]
                pub const $name: Self = Self($value);
            )*
        }
    };
}
pub(crate) use constants;

/// Components of a record, by their bits: `NAME = bit` or `NAME = bit | bit`. protocols 4.1.
macro_rules! components {
    ($type:ident: $($name:ident = $bit:literal $(| $more:literal)*;)*) => {
        impl $type {
            $(
                #[doc = concat!("Component ", $bit, $(" with ", $more,)* " of a query.")]
                pub const $name: $crate::wire::mad::ComponentMask =
                    $crate::wire::mad::ComponentMask(1 << $bit $(| 1 << $more)*);
            )*
        }
    };
}
pub(crate) use components;

/// As [`components!`], for records that are found by comparison: `NAME = bit: field` is compared, `NAME = bit` is not,
/// `[name; count] = bit: field` is an array of which each element is a component.
macro_rules! records {
    (
        $type:ident:
        $($name:ident = $bit:literal $(: $($path:ident).+)?;)*
        $([$each:ident; $count:literal] = $first:literal: $($array:ident).+;)*
    ) => {
        $crate::wire::mad::layout::components! { $type: $($name = $bit;)* }

        impl $type {
            $(
                #[doc = concat!("Components from ", $first, " on of a query: element `index`, below ", $count, ".")]
                pub const fn $each(index: usize) -> $crate::wire::mad::ComponentMask {
                    let bit = if index < $count { 1 << ($first + index) } else { 0 };
                    $crate::wire::mad::ComponentMask(bit)
                }
            )*
        }

        impl $crate::wire::mad::Record for $type {
            fn matches(&self, query: &Self, mask: $crate::wire::mad::ComponentMask) -> bool {
                $($(
                    if mask.has(Self::$name) && self.$($path).+ != query.$($path).+ {
                        return false;
                    }
                )?)*
                $(
                    let pairs = self.$($array).+.iter().zip(&query.$($array).+);
                    for (index, (mine, asked)) in pairs.enumerate() {
                        if mask.has(Self::$each(index)) && mine != asked {
                            return false;
                        }
                    }
                )*
                true
            }
        }
    };
}
pub(crate) use records;

#[cfg(test)]
mod tests {
    use super::{load, mark, mark_bits, store};
    use proptest::prelude::*;

    #[test]
    #[should_panic(expected = "two fields overlap")]
    fn a_table_with_two_fields_in_one_place_does_not_compile() {
        mark(mark_bits([0; 2], 0, 1, 4, 0), 0, 2, &[0xf0, 0xff]);
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn a_table_whose_field_leaves_the_structure_does_not_compile() {
        mark_bits([0; 2], 1, 2, 15, 0);
    }

    #[test]
    #[should_panic(expected = "no such bits")]
    fn a_table_with_bits_that_the_number_does_not_have_does_not_compile() {
        mark_bits([0; 2], 0, 1, 8, 8);
    }

    #[test]
    fn the_mask_of_a_table_is_its_fields() {
        let mask = mark([0; 6], 0, 3, &[0x0f, 0xf0]);
        assert_eq!(mask, [0x0f, 0xf0, 0x0f, 0, 0, 0]);
        assert_eq!(
            mark_bits(mask, 3, 3, 20, 7),
            [0x0f, 0xf0, 0x0f, 0x1f, 0xff, 0x80]
        );
    }

    #[test]
    fn bits_are_those_of_a_big_endian_number() {
        let mut bytes = [0xff, 0x81, 0x23, 0x45, 0x67];
        assert_eq!(load(&bytes, 1, 4, 27, 8), 0x1_2345);
        store(&mut bytes, 1, 4, 27, 8, 0xfff_abcd);
        assert_eq!(bytes, [0xff, 0x8f, 0xab, 0xcd, 0x67]);
    }

    proptest! {
        #[test]
        fn what_is_stored_is_loaded_and_its_neighbours_stay(
            before: [u8; 12], value: u64, at in 0..4_usize, len in 1..9_usize, a in 0..64_u32, b in 0..64_u32,
        ) {
            let bits = 8 * len as u32;
            let (low, high) = ((a % bits).min(b % bits), (a % bits).max(b % bits));
            let mut bytes = before;
            store(&mut bytes, at, len, high, low, value);
            let kept = value & (u64::MAX >> (63 - (high - low)));
            prop_assert_eq!(load(&bytes, at, len, high, low), kept);
            store(&mut bytes, at, len, high, low, load(&before, at, len, high, low));
            prop_assert_eq!(bytes, before);
        }
    }
}

/// The property of every layout, for the tests of each.
#[cfg(test)]
pub(crate) mod property {
    use super::Layout;
    use crate::wire::WireError;
    extern crate std;
    use std::vec::Vec;

    /// What is read writes back the same but for bits without meaning; too few bytes are an error; nothing else is.
    pub(crate) fn round_trips<L: Layout + PartialEq + core::fmt::Debug>(bytes: &[u8]) {
        let read = L::read(bytes);
        if bytes.len() < L::SIZE {
            let (header, need, have) = (L::NAME, L::SIZE, bytes.len());
            assert_eq!(read, Err(WireError::Truncated { header, need, have }));
            return;
        }
        let value = read.unwrap();
        let mut again = [0xee; 256];
        value.write(&mut again).unwrap();
        let with_meaning = bytes.iter().zip(L::MEANING).map(|(byte, mask)| byte & mask);
        assert_eq!(again[..L::SIZE], with_meaning.collect::<Vec<_>>()[..]);
        assert!(
            again[L::SIZE..].iter().all(|&byte| byte == 0xee),
            "wrote past its end"
        );
        assert_eq!(L::read(&again), Ok(value));
        let (header, need, have) = (L::NAME, L::SIZE, L::SIZE - 1);
        let small = value.write(&mut again[..have]);
        assert_eq!(small, Err(WireError::NoSpace { header, need, have }));
    }

    /// Properties of the listed layouts, as one test.
    macro_rules! round_trip_tests {
        ($($layout:ty),* $(,)?) => {
            proptest::proptest! {
                #[test]
                fn what_is_read_writes_back_the_same_but_for_bits_without_meaning(
                    bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 256),
                    len in proptest::prop_oneof![
                        3 => proptest::prelude::Just(256), 1 => 0..256_usize
                    ],
                ) {
                    $($crate::wire::mad::layout::property::round_trips::<$layout>(&bytes[..len]);)*
                }
            }
        };
    }
    pub(crate) use round_trip_tests;
}
