//! Clients: what comes and goes with devices. verbs 2.5.

use super::VerbsError;
use crate::platform::{Gate, RawGate};

/// Something that wants to know of every device.
pub trait Client<D: Copy>: Sync {
    /// As it appears in messages.
    fn name(&self) -> &'static str;
    /// A device is there, fully usable. Control context; may block. After an error, `remove` is not called for
    /// this device.
    fn add(&self, device: D) -> Result<(), VerbsError>;
    /// The device is going. Releases every object made on it, which still accepts all calls. May block.
    fn remove(&self, device: D);
}

struct State<'c, D: Copy, const CLIENTS: usize, const DEVICES: usize> {
    clients: [Option<&'c dyn Client<D>>; CLIENTS],
    /// A device, and the clients (bit by index) whose `add` succeeded.
    devices: [Option<(D, u32)>; DEVICES],
}

/// Who is interested in which devices. `D` names a device (a reference, a handle). At most 32 clients.
///
/// Registering and unregistering of devices and clients may race in any way: one gate orders them, so `add` and
/// `remove` of one pair alternate and never overlap. A client does not call back into the registry.
pub struct ClientRegistry<'c, D: Copy, G, const CLIENTS: usize, const DEVICES: usize> {
    state: Gate<State<'c, D, CLIENTS, DEVICES>, G>,
}

impl<'c, D: Copy + PartialEq, G: RawGate, const CLIENTS: usize, const DEVICES: usize>
    ClientRegistry<'c, D, G, CLIENTS, DEVICES>
{
    const FITS: () = assert!(CLIENTS <= 32, "the clients of a device are bits of a u32");

    /// Nobody and nothing.
    pub const fn new(raw: G) -> Self {
        let () = Self::FITS;
        Self {
            state: Gate::new(
                raw,
                State {
                    clients: [None; CLIENTS],
                    devices: [None; DEVICES],
                },
            ),
        }
    }

    /// Calls `add` of every client, in the order in which they registered. Blocks.
    pub fn register_device(&self, device: D) -> Result<(), VerbsError> {
        self.state.with(|state| {
            let free = state.devices.iter_mut().find(|slot| slot.is_none());
            let free = free.ok_or(VerbsError::NoResources {
                entry: "DEVICES of the client registry",
                limit: DEVICES as u32,
            })?;
            let mut added = 0;
            for (bit, client) in state.clients.iter().enumerate() {
                if let Some(client) = client
                    && client.add(device).is_ok()
                {
                    added |= 1 << bit;
                }
            }
            *free = Some((device, added));
            Ok(())
        })
    }

    /// Calls `remove` of every client that has the device, last registered first. Blocks.
    pub fn unregister_device(&self, device: D) {
        self.state.with(|state| {
            for slot in &mut state.devices {
                let Some((_, added)) = slot.filter(|(known, _)| *known == device) else {
                    continue;
                };
                for (bit, client) in state.clients.iter().enumerate().rev() {
                    if let Some(client) = client
                        && added & (1 << bit) != 0
                    {
                        client.remove(device);
                    }
                }
                *slot = None;
            }
        });
    }

    /// Calls `add` once for every device present; for later ones as they come. Blocks.
    pub fn register_client(&self, client: &'c dyn Client<D>) -> Result<(), VerbsError> {
        self.state.with(|state| {
            // Behind the last one in use, since the order of registration counts.
            let last = state.clients.iter().rposition(Option::is_some);
            let bit = last.map_or(0, |last| last + 1);
            let free = state.clients.get_mut(bit).ok_or(VerbsError::NoResources {
                entry: "CLIENTS of the client registry",
                limit: CLIENTS as u32,
            })?;
            *free = Some(client);
            for (device, added) in state.devices.iter_mut().flatten() {
                if client.add(*device).is_ok() {
                    *added |= 1 << bit;
                }
            }
            Ok(())
        })
    }

    /// Calls `remove` for every device that it has. When this returns, the client is not running and will not be
    /// called. Blocks.
    pub fn unregister_client(&self, client: &'c dyn Client<D>) {
        self.state.with(|state| {
            let known = state
                .clients
                .iter()
                .position(|entry| entry.is_some_and(|entry| core::ptr::addr_eq(entry, client)));
            let Some(bit) = known else { return };
            for (device, added) in state.devices.iter_mut().flatten() {
                if *added & (1 << bit) != 0 {
                    client.remove(*device);
                }
                *added = without_bit(*added, bit);
            }
            // Close the gap: order is kept, and places are not used up.
            if let Some(rest) = state.clients.get_mut(bit..) {
                rest.rotate_left(1);
                if let Some(last) = rest.last_mut() {
                    *last = None;
                }
            }
        });
    }
}

/// `bits` with bit `at` taken out and those above moved down.
const fn without_bit(bits: u32, at: usize) -> u32 {
    let low = (1_u32 << at).wrapping_sub(1);
    (bits & low) | ((bits >> 1) & !low)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::{String, ToString};
    use std::sync::Mutex;
    use std::vec::Vec;

    #[derive(Default)]
    struct Free(Mutex<()>);
    // SAFETY: tests are single-threaded; a second `enter` panics.
    unsafe impl RawGate for Free {
        fn enter(&self) {
            core::mem::forget(self.0.try_lock().unwrap());
        }
        unsafe fn leave(&self) {
            // SAFETY: locked by `enter`, whose guard was forgotten.
            unsafe { std::ptr::from_ref(&self.0).cast_mut().write(Mutex::new(())) };
        }
    }

    struct Named<'l>(&'static str, &'l Mutex<Vec<String>>, u32);
    impl Client<u32> for Named<'_> {
        fn name(&self) -> &'static str {
            self.0
        }
        fn add(&self, device: u32) -> Result<(), VerbsError> {
            self.1
                .lock()
                .unwrap()
                .push(self.0.to_string() + "+" + &device.to_string());
            if device == self.2 {
                return Err(VerbsError::DeviceFailed);
            }
            Ok(())
        }
        fn remove(&self, device: u32) {
            self.1
                .lock()
                .unwrap()
                .push(self.0.to_string() + "-" + &device.to_string());
        }
    }

    #[test]
    fn clients_come_in_order_and_go_in_reverse() {
        let log = Mutex::new(Vec::new());
        let (a, b, c) = (
            Named("a", &log, 0),
            Named("b", &log, 2),
            Named("c", &log, 0),
        );
        let registry = ClientRegistry::<u32, _, 4, 2>::new(Free::default());
        registry.register_client(&a).unwrap();
        registry.register_device(1).unwrap();
        registry.register_client(&b).unwrap();
        registry.register_client(&c).unwrap();
        registry.register_device(2).unwrap(); // b fails to add it
        registry.unregister_client(&a);
        registry.unregister_device(1);
        registry.unregister_device(2);
        let expected = [
            "a+1", "b+1", "c+1", "a+2", "b+2", "c+2", "a-1", "a-2", "c-1", "b-1", "c-2",
        ];
        assert_eq!(*log.lock().unwrap(), expected);
    }

    #[test]
    fn places_for_clients_are_not_used_up_by_coming_and_going() {
        let log = Mutex::new(Vec::new());
        let client = Named("a", &log, 0);
        let registry = ClientRegistry::<u32, _, 1, 1>::new(Free::default());
        for _ in 0..3 {
            registry.register_client(&client).unwrap();
            assert!(registry.register_client(&client).is_err());
            registry.unregister_client(&client);
        }
    }
}
