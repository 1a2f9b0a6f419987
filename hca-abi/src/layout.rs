//! How a layout is written down: one table a structure, in the words of the reference (offset, bits, name), from which
//! the reader and the writer of each field are made together, so that they cannot disagree.

/// Declares a structure of big-endian dwords. A row is `reader / writer: type = place;`, a place one of
///
/// * `bits(offset, high, low)`: bits of the dword at `offset`, bit 0 being the least significant; as an integer,
///   a `bool` or a newtype of [`number_set!`];
/// * `quad(offset)`: 64 bits, high dword first, at any dword;
/// * `in_place(offset, high, low)`: bits of the `u64` at `offset` that keep their place (an address whose low bits
///   mean something else), `in_place32` the same of a dword;
/// * `raw(offset)`: 16 bytes as they lie there (a GID);
/// * `part(offset)`: a structure of 8 dwords within this one, declared in the same file.
///
/// All offsets are constants, so an access outside of the structure does not compile.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident[$bytes:literal] {
            $($(#[$field:meta])* $get:ident / $set:ident: $ty:tt = $kind:ident($($place:literal),+);)*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            dwords: [zerocopy::big_endian::U32; $bytes / 4],
        }
        static_assertions::const_assert_eq!(core::mem::size_of::<$name>(), $bytes);

        impl $name {
            /// All zero: reserved fields are to be zero, and so is whatever is not set afterwards.
            pub const ZERO: Self = Self { dwords: [zerocopy::big_endian::U32::ZERO; $bytes / 4] };

            $(
                $(#[$field])*
                #[inline]
                pub const fn $get(&self) -> $ty {
                    layout!(@get $kind $ty, self, $($place),+)
                }

                #[doc = concat!("Writes [`", stringify!($get), "`](Self::", stringify!($get), ").")]
                #[inline]
                pub const fn $set(&mut self, value: $ty) -> &mut Self {
                    layout!(@set $kind $ty, self, value, $($place),+);
                    self
                }
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ZERO
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($get), &self.$get()))*.finish()
            }
        }

        impl crate::layout::Rewrite for $name {
            fn rewritten(&self) -> Self {
                let mut to = Self::ZERO;
                $(to.$set(self.$get());)*
                to
            }
        }

        #[cfg(test)]
        impl crate::layout::Table for $name {
            const FIELDS: &'static [crate::layout::Field<Self>] = &[$(layout!(@test $get $set $kind $ty, $($place),+)),*];
        }
    };

    (@get bits $ty:tt, $s:ident, $at:literal, $high:literal, $low:literal) => {
        layout!(@from $ty, ($s.dwords[$at / 4].get() >> $low) & $crate::layout::ones($high, $low))
    };
    (@get quad $ty:tt, $s:ident, $at:literal) => {
        ($s.dwords[$at / 4].get() as u64) << 32 | $s.dwords[$at / 4 + 1].get() as u64
    };
    (@get in_place $ty:tt, $s:ident, $at:literal, $high:literal, $low:literal) => {
        layout!(@get quad $ty, $s, $at) & $crate::layout::ones64($high, $low) << $low
    };
    (@get in_place32 $ty:tt, $s:ident, $at:literal, $high:literal, $low:literal) => {
        $s.dwords[$at / 4].get() & $crate::layout::ones($high, $low) << $low
    };
    (@get raw $ty:tt, $s:ident, $at:literal) => {
        $crate::layout::to_raw([
            $s.dwords[$at / 4], $s.dwords[$at / 4 + 1], $s.dwords[$at / 4 + 2], $s.dwords[$at / 4 + 3],
        ])
    };
    (@get part $ty:tt, $s:ident, $at:literal) => {
        $ty { dwords: [
            $s.dwords[$at / 4], $s.dwords[$at / 4 + 1], $s.dwords[$at / 4 + 2], $s.dwords[$at / 4 + 3],
            $s.dwords[$at / 4 + 4], $s.dwords[$at / 4 + 5], $s.dwords[$at / 4 + 6], $s.dwords[$at / 4 + 7],
        ] }
    };

    (@set bits $ty:tt, $s:ident, $v:ident, $at:literal, $high:literal, $low:literal) => {{
        const MASK: u32 = $crate::layout::ones($high, $low);
        let rest = $s.dwords[$at / 4].get() & !(MASK << $low);
        $s.dwords[$at / 4] = zerocopy::big_endian::U32::new(rest | (layout!(@into $ty, $v) & MASK) << $low)
    }};
    (@set quad $ty:tt, $s:ident, $v:ident, $at:literal) => {{
        $s.dwords[$at / 4] = zerocopy::big_endian::U32::new(($v >> 32) as u32);
        $s.dwords[$at / 4 + 1] = zerocopy::big_endian::U32::new($v as u32)
    }};
    (@set in_place $ty:tt, $s:ident, $v:ident, $at:literal, $high:literal, $low:literal) => {{
        const MASK: u64 = $crate::layout::ones64($high, $low) << $low;
        let value = layout!(@get quad $ty, $s, $at) & !MASK | $v & MASK;
        layout!(@set quad $ty, $s, value, $at)
    }};
    (@set in_place32 $ty:tt, $s:ident, $v:ident, $at:literal, $high:literal, $low:literal) => {{
        const MASK: u32 = $crate::layout::ones($high, $low) << $low;
        $s.dwords[$at / 4] = zerocopy::big_endian::U32::new($s.dwords[$at / 4].get() & !MASK | $v & MASK)
    }};
    (@set raw $ty:tt, $s:ident, $v:ident, $at:literal) => {{
        let [a, b, c, d] = $crate::layout::from_raw($v);
        $s.dwords[$at / 4] = a;
        $s.dwords[$at / 4 + 1] = b;
        $s.dwords[$at / 4 + 2] = c;
        $s.dwords[$at / 4 + 3] = d
    }};
    (@set part $ty:tt, $s:ident, $v:ident, $at:literal) => {{
        let [a, b, c, d, e, f, g, h] = $v.dwords;
        $s.dwords[$at / 4] = a;
        $s.dwords[$at / 4 + 1] = b;
        $s.dwords[$at / 4 + 2] = c;
        $s.dwords[$at / 4 + 3] = d;
        $s.dwords[$at / 4 + 4] = e;
        $s.dwords[$at / 4 + 5] = f;
        $s.dwords[$at / 4 + 6] = g;
        $s.dwords[$at / 4 + 7] = h
    }};

    (@from u8, $e:expr) => { ($e) as u8 };
    (@from u16, $e:expr) => { ($e) as u16 };
    (@from u32, $e:expr) => { $e };
    (@from bool, $e:expr) => { ($e) != 0 };
    (@from $set:ident, $e:expr) => { $set::from_bits($e) };
    (@into $int:ident, $v:ident) => { layout!(@into_int $int $v) };
    (@into_int u8 $v:ident) => { $v as u32 };
    (@into_int u16 $v:ident) => { $v as u32 };
    (@into_int u32 $v:ident) => { $v };
    (@into_int bool $v:ident) => { $v as u32 };
    (@into_int $set:ident $v:ident) => { $v.to_bits() };

    (@test $get:ident $set:ident bits $ty:tt, $at:literal, $high:literal, $low:literal) => {
        crate::layout::Field {
            name: stringify!($get),
            first: $at * 8 + 31 - $high,
            last: $at * 8 + 31 - $low,
            copy: |from, to| { to.$set(from.$get()); },
        }
    };
    (@test $get:ident $set:ident in_place $ty:tt, $at:literal, $high:literal, $low:literal) => {
        crate::layout::Field {
            name: stringify!($get),
            first: $at * 8 + 63 - $high,
            last: $at * 8 + 63 - $low,
            copy: |from, to| { to.$set(from.$get()); },
        }
    };
    (@test $get:ident $set:ident in_place32 $ty:tt, $at:literal, $high:literal, $low:literal) => {
        layout!(@test $get $set bits $ty, $at, $high, $low)
    };
    (@test $get:ident $set:ident quad $ty:tt, $at:literal) => {
        layout!(@test $get $set in_place $ty, $at, 63, 0)
    };
    (@test $get:ident $set:ident raw $ty:tt, $at:literal) => {
        crate::layout::Field {
            name: stringify!($get),
            first: $at * 8,
            last: $at * 8 + 127,
            copy: |from, to| { to.$set(from.$get()); },
        }
    };
    (@test $get:ident $set:ident part $ty:tt, $at:literal) => {
        crate::layout::Field {
            name: stringify!($get),
            first: $at * 8,
            last: $at * 8 + 255,
            copy: |from, to| { to.$set(from.$get()); },
        }
    };
}

/// Declares an open set of named numbers: a newtype whose every value may occur, with constants for those that have a
/// name, which `Debug` shows.
macro_rules! number_set {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($int:ident) {
            $($(#[$value:meta])* $constant:ident = $number:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$value])* pub const $constant: Self = Self($number);)*

            /// The constant's name, if the number has one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($constant)),)*
                    _ => None,
                }
            }

            #[allow(dead_code, reason = "not every set is a field of a structure")]
            pub(crate) const fn from_bits(bits: u32) -> Self {
                Self(bits as $int)
            }

            #[allow(dead_code, reason = "not every set is a field of a structure")]
            pub(crate) const fn to_bits(self) -> u32 {
                self.0 as u32
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({:#x})"), self.0),
                }
            }
        }
    };
}

use zerocopy::big_endian::U32;

/// What every [`layout!`] can do.
pub(crate) trait Rewrite {
    /// All fields read, and written again where nothing was.
    fn rewritten(&self) -> Self;
}

/// As many ones as the bits `high` to `low` of a dword.
pub(crate) const fn ones(high: u32, low: u32) -> u32 {
    u32::MAX >> (31 - (high - low))
}

/// As many ones as the bits `high` to `low` of 64.
pub(crate) const fn ones64(high: u32, low: u32) -> u64 {
    u64::MAX >> (63 - (high - low))
}

/// Four dwords as bytes.
pub(crate) const fn to_raw(dwords: [U32; 4]) -> [u8; 16] {
    zerocopy::transmute!(dwords)
}

/// The reverse of [`to_raw`].
pub(crate) const fn from_raw(raw: [u8; 16]) -> [U32; 4] {
    zerocopy::transmute!(raw)
}

#[cfg(test)]
pub(crate) use tests::{Field, Table, each_field_stands_where_its_row_says};

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;
    use zerocopy::{FromBytes, Immutable, IntoBytes};

    /// A row of a [`layout!`](crate), for tests.
    pub(crate) struct Field<T: 'static> {
        pub(crate) name: &'static str,
        /// First bit on the bus: byte * 8 + (7 - bit of the byte).
        pub(crate) first: usize,
        pub(crate) last: usize,
        pub(crate) copy: fn(&T, &mut T),
    }

    /// The rows of a structure.
    pub(crate) trait Table: Sized + 'static {
        const FIELDS: &'static [Field<Self>];
    }

    /// With `bytes` taken for the structure: copying one field changes exactly the bits of its row; copying all
    /// reproduces all bits that some row names. Rows overlap only where `overlap` names the later one.
    pub(crate) fn each_field_stands_where_its_row_says<T>(bytes: &[u8], overlap: &[&str])
    where
        T: Table + FromBytes + IntoBytes + Immutable + Copy,
    {
        let from = T::read_from_bytes(bytes).unwrap();
        let mut covered: Vec<u8> = std::vec![0; bytes.len()];
        for field in T::FIELDS {
            let mut mask: Vec<u8> = std::vec![0; bytes.len()];
            for bit in field.first..=field.last {
                mask[bit / 8] |= 0x80 >> (bit % 8);
            }
            for fill in [0_u8, 0xff] {
                let background: Vec<u8> = std::vec![fill; bytes.len()];
                let mut to = T::read_from_bytes(&background).unwrap();
                (field.copy)(&from, &mut to);
                for (at, &byte) in to.as_bytes().iter().enumerate() {
                    let expected = bytes[at] & mask[at] | fill & !mask[at];
                    assert_eq!(
                        byte, expected,
                        "{} at byte {at:#x} over {fill:#x}",
                        field.name
                    );
                }
            }
            let clash = covered.iter().zip(&mask).any(|(a, b)| a & b != 0);
            assert!(
                !clash || overlap.contains(&field.name),
                "{} overlaps another row",
                field.name
            );
            covered.iter_mut().zip(&mask).for_each(|(a, b)| *a |= b);
        }
        let mut all = T::new_zeroed();
        T::FIELDS
            .iter()
            .for_each(|field| (field.copy)(&from, &mut all));
        for (at, &byte) in all.as_bytes().iter().enumerate() {
            assert_eq!(byte, bytes[at] & covered[at], "byte {at:#x}");
        }
    }
}
