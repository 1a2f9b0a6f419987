//! Memory for long-lived tables, and for single values that must not move.

use super::Platform;
use core::alloc::Layout;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// What owns the bytes of a [`Table`]; a platform by its `table_alloc`.
pub trait TableMemory {
    /// Gives the bytes back.
    ///
    /// # Safety
    ///
    /// As [`Platform::table_free`].
    unsafe fn give_back(&self, memory: NonNull<u8>, layout: Layout);
}

impl<P: Platform> TableMemory for P {
    unsafe fn give_back(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller keeps the same promise.
        unsafe { self.table_free(memory, layout) };
    }
}

/// A fixed number of `T`s in memory that the platform gave at set-up. They never move, so that an interrupt
/// handler may be told where they are; mutation goes through what `T` offers, or through a unique reference where
/// nobody was told.
pub struct Table<'p, T, M: TableMemory> {
    first: NonNull<T>,
    len: usize,
    owner: &'p M,
}

// SAFETY: a `Table` owns its `T`s as a boxed slice would.
unsafe impl<T: Send, M: TableMemory + Sync> Send for Table<'_, T, M> {}
// SAFETY: a shared `Table` gives shared `T`s and nothing else.
unsafe impl<T: Sync, M: TableMemory + Sync> Sync for Table<'_, T, M> {}

impl<'p, T, P: Platform> Table<'p, T, P> {
    /// `len` entries, each made by `make` from its index. Set-up only; may block.
    pub fn new(
        machine: &'p P,
        len: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> super::Result<Self> {
        Self::try_new(machine, len, |index| Ok(make(index)))
    }

    /// As [`Table::new`]; at the first error everything made is dropped and the memory given back.
    pub fn try_new<E: From<super::PlatformError>>(
        machine: &'p P,
        len: usize,
        mut make: impl FnMut(usize) -> Result<T, E>,
    ) -> Result<Self, E> {
        let bytes = size_of::<T>().saturating_mul(len);
        let too_much = super::PlatformError::NoTableMemory { len: bytes };
        let layout = Layout::array::<T>(len).map_err(|_| too_much)?;
        let first = if layout.size() == 0 {
            NonNull::dangling()
        } else {
            machine.table_alloc(layout)?.cast::<T>()
        };
        // Grows entry by entry, so that an early return drops exactly what was made.
        let mut table = Building {
            table: Table {
                first,
                len: 0,
                owner: machine,
            },
            layout,
        };
        for index in 0..len {
            let entry = make(index)?;
            // SAFETY: `index < len`, and the allocation holds `len` entries; this one is not yet made.
            unsafe { first.add(index).write(entry) };
            table.table.len = index + 1;
        }
        let whole = Table {
            first,
            len,
            owner: machine,
        };
        core::mem::forget(table);
        Ok(whole)
    }
}

/// A table on its way: its allocation is larger than what has been made.
struct Building<'p, T, M: TableMemory> {
    table: Table<'p, T, M>,
    layout: Layout,
}

impl<T, M: TableMemory> Drop for Building<'_, T, M> {
    fn drop(&mut self) {
        self.table.drop_entries();
        if self.layout.size() != 0 {
            // SAFETY: allocated with this layout; its entries are dropped.
            unsafe {
                self.table
                    .owner
                    .give_back(self.table.first.cast(), self.layout)
            };
        }
        self.table.len = 0;
    }
}

impl<T, M: TableMemory> Table<'_, T, M> {
    fn drop_entries(&mut self) {
        let entries = NonNull::slice_from_raw_parts(self.first, self.len);
        // SAFETY: the first `len` entries are made, and are not used after this.
        unsafe { entries.drop_in_place() };
    }

    /// Where entry 0 is, for who must keep a pointer. Who follows it later answers for it that nobody holds a unique
    /// reference to the table then.
    pub const fn as_ptr(&self) -> NonNull<T> {
        self.first
    }
}

impl<T, M: TableMemory> Deref for Table<'_, T, M> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` entries were made, and nobody has a unique reference to them.
        unsafe { NonNull::slice_from_raw_parts(self.first, self.len).as_ref() }
    }
}

impl<T, M: TableMemory> DerefMut for Table<'_, T, M> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` entries were made, and `&mut self` is the only way to them by reference.
        unsafe { NonNull::slice_from_raw_parts(self.first, self.len).as_mut() }
    }
}

impl<T: fmt::Debug, M: TableMemory> fmt::Debug for Table<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T, M: TableMemory> Drop for Table<'_, T, M> {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        self.drop_entries();
        if let Ok(layout) = Layout::array::<T>(self.len)
            && layout.size() != 0
        {
            // SAFETY: allocated with this layout by this owner; its entries are dropped.
            unsafe { self.owner.give_back(self.first.cast(), layout) };
        }
    }
}

/// One `T` in memory that the platform gave at set-up: it does not move while this lives, so that an interrupt
/// handler may be told where it is.
pub struct Placed<'p, T, M: TableMemory> {
    at: NonNull<T>,
    owner: &'p M,
}

// SAFETY: a `Placed` owns its `T` as a box would.
unsafe impl<T: Send, M: TableMemory + Sync> Send for Placed<'_, T, M> {}
// SAFETY: a shared `Placed` gives a shared `T` and nothing else.
unsafe impl<T: Sync, M: TableMemory + Sync> Sync for Placed<'_, T, M> {}

/// A place for a `T` that is not made yet: got first where making it must not fail.
pub struct Room<'p, T, M: TableMemory> {
    at: NonNull<T>,
    owner: &'p M,
}

impl<'p, T, P: Platform> Room<'p, T, P> {
    /// Set-up only; may block.
    pub fn new(machine: &'p P) -> super::Result<Self> {
        let layout = Layout::new::<T>();
        let at = if layout.size() == 0 {
            NonNull::dangling()
        } else {
            machine.table_alloc(layout)?.cast::<T>()
        };
        Ok(Self { at, owner: machine })
    }
}

/// What begins as a copy of a constant. What is large is made so where it is to lie, and never on a stack.
///
/// # Safety
///
/// A bit-wise copy of [`BLANK`](Self::BLANK) is as good a value as any that a constructor gives: it owns nothing that
/// `BLANK` owns too.
pub unsafe trait Blank: 'static {
    /// The value to be copied.
    const BLANK: &'static Self;
}

impl<'p, T: Blank, M: TableMemory> Room<'p, T, M> {
    /// Makes a blank value there.
    pub fn blank(self) -> Placed<'p, T, M> {
        let (at, owner) = (self.at, self.owner);
        core::mem::forget(self);
        // SAFETY: the allocation is good for one `T`, there is none yet, and it is no part of a constant; a copy is a
        // value, as whoever made `T` blank promised.
        unsafe { at.copy_from_nonoverlapping(NonNull::from(T::BLANK), 1) };
        Placed { at, owner }
    }
}

impl<'p, T, M: TableMemory> Room<'p, T, M> {
    /// Puts `value` there.
    pub fn put(self, value: T) -> Placed<'p, T, M> {
        let (at, owner) = (self.at, self.owner);
        core::mem::forget(self);
        // SAFETY: the allocation is good for one `T`, and there is none yet.
        unsafe { at.write(value) };
        Placed { at, owner }
    }
}

impl<T, M: TableMemory> Drop for Room<'_, T, M> {
    fn drop(&mut self) {
        give_back_one(self.at, self.owner);
    }
}

impl<T, M: TableMemory> fmt::Debug for Room<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
}

impl<T, M: TableMemory> Placed<'_, T, M> {
    /// Where it is, for who must keep a pointer.
    pub const fn as_ptr(this: &Self) -> NonNull<T> {
        this.at
    }

    /// Takes the value out and gives the memory back.
    pub fn into_inner(this: Self) -> T {
        // SAFETY: there is a value, and `this` is forgotten, so that nobody reads it again.
        let value = unsafe { this.at.read() };
        let (at, owner) = (this.at, this.owner);
        core::mem::forget(this);
        give_back_one(at, owner);
        value
    }
}

fn give_back_one<T, M: TableMemory>(at: NonNull<T>, owner: &M) {
    let layout = Layout::new::<T>();
    if layout.size() != 0 {
        // SAFETY: allocated with this layout by this owner; the caller has taken the value out or dropped it.
        unsafe { owner.give_back(at.cast(), layout) };
    }
}

impl<T, M: TableMemory> Deref for Placed<'_, T, M> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is a value, and nobody has a unique reference to it.
        unsafe { self.at.as_ref() }
    }
}

impl<T, M: TableMemory> DerefMut for Placed<'_, T, M> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is a value, and nobody else has a reference to it.
        unsafe { self.at.as_mut() }
    }
}

impl<T: fmt::Debug, M: TableMemory> fmt::Debug for Placed<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T, M: TableMemory> Drop for Placed<'_, T, M> {
    fn drop(&mut self) {
        // SAFETY: there is a value, and it is not used after this.
        unsafe { self.at.drop_in_place() };
        give_back_one(self.at, self.owner);
    }
}
