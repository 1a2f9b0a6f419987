//! A device as sysfs shows it, and the driver that it is bound to.

use crate::Error;
use hca_abi::infinihost::pci::{DeviceId, VENDOR_MELLANOX, VENDOR_TOPSPIN};
use rustix::fs::{FlockOperation, flock};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Where a device is: domain, bus, device and function, as in `0000:04:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for Slot {
    type Err = String;

    /// The domain may be left out.
    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            let number = |text: &str, end: u32| {
                let number = u32::from_str_radix(text, 16).ok()?;
                (number < end && !text.starts_with('+')).then_some(number)
            };
            Some(Self {
                domain: number(domain, u32::MAX)?,
                bus: number(bus, 256)? as u8,
                device: number(device, 32)? as u8,
                function: number(function, 8)? as u8,
            })
        };
        read().ok_or_else(|| format!("`{text}` is not a place on a PCI bus, like 0000:04:00.0"))
    }
}

const BUS: &str = "/sys/bus/pci";
/// How long a driver may take to be bound.
const PATIENCE: Duration = Duration::from_secs(5);
/// Flag of memory in the third number of a line of `resource`; offset and bits of the command register.
const MEMORY: u64 = 0x200;
pub(crate) const COMMAND: u16 = 4;
pub(crate) const COMMAND_ON: u32 = 0x6;
pub(crate) const INTX_OFF: u32 = 1 << 10;

/// A device.
#[derive(Debug)]
pub(crate) struct Function {
    pub slot: Slot,
    /// Configuration space, as the bus has it.
    config: File,
    bars: [u64; 6],
}

impl Function {
    /// The HCA at `slot`; the only one, if it is not said where.
    pub fn find(slot: Option<Slot>) -> Result<Self, Error> {
        let slot = match slot {
            Some(slot) => slot,
            None => only()?,
        };
        let found = Self::at(slot)?;
        let [vendor, device] = halves(found.config_read32(0));
        match is_hca(vendor, device) {
            true => Ok(found),
            false => Err(Error::NotAnHca(slot)),
        }
    }

    /// Keeps other processes of this kind away for as long as this lives. A file of the driver's is not for that: closing one of
    /// `uio_pci_generic` stops the device, whoever else has it open.
    pub fn lock(&self) -> Result<(), Error> {
        match flock(&self.config, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse(self.slot)),
            Err(error) => Err(Error::System {
                what: "locking the device",
                error: error.into(),
            }),
        }
    }

    fn at(slot: Slot) -> Result<Self, Error> {
        let path = folder(slot).join("config");
        let config = OpenOptions::new().read(true).write(true).open(&path);
        let config = config.map_err(|error| Error::File { path, error })?;
        let bars = bars(&read(folder(slot).join("resource"))?);
        Ok(Self { slot, config, bars })
    }

    /// Its folder.
    pub fn folder(&self) -> PathBuf {
        folder(self.slot)
    }

    /// Bytes of each memory BAR.
    pub fn bar_len(&self, bar: u8) -> Option<u64> {
        let len = self.bars.get(usize::from(bar)).copied();
        len.filter(|len| *len != 0)
    }

    /// A word of configuration space; all ones if it cannot be read.
    pub fn config_read32(&self, offset: u16) -> u32 {
        let mut word = [0xff; 4];
        match self.config.read_exact_at(&mut word, offset.into()) {
            Ok(()) => u32::from_le_bytes(word),
            Err(_) => u32::MAX,
        }
    }

    /// Writes one.
    pub fn config_write32(&self, offset: u16, value: u32) {
        let written = self
            .config
            .write_all_at(&value.to_le_bytes(), offset.into());
        if let Err(error) = written {
            log::warn!("{}: configuration space at {offset:#x}: {error}", self.slot);
        }
    }

    /// Writes the command register alone, and not the status beside it.
    pub fn write_command(&self, value: u16) {
        let written = self
            .config
            .write_all_at(&value.to_le_bytes(), COMMAND.into());
        if let Err(error) = written {
            log::warn!("{}: the command register: {error}", self.slot);
        }
    }

    /// Kind of the domain that its DMA goes through (`DMA`, `identity` …), if there is an IOMMU.
    pub fn iommu(&self) -> Option<String> {
        let kind = std::fs::read_to_string(self.folder().join("iommu_group/type"));
        kind.ok().map(|kind| kind.trim().into())
    }

    fn driver(&self) -> Option<String> {
        let driver = std::fs::read_link(self.folder().join("driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }
}

fn folder(slot: Slot) -> PathBuf {
    PathBuf::from(format!("{BUS}/devices/{slot}"))
}

fn read(path: PathBuf) -> Result<String, Error> {
    std::fs::read_to_string(&path).map_err(|error| Error::File { path, error })
}

fn write(path: PathBuf, text: &str) -> Result<(), Error> {
    std::fs::write(&path, text).map_err(|error| Error::File { path, error })
}

const fn halves(word: u32) -> [u16; 2] {
    [word as u16, (word >> 16) as u16]
}

fn is_hca(vendor: u16, device: u16) -> bool {
    let all = [
        DeviceId::TAVOR,
        DeviceId::ARBEL_COMPAT,
        DeviceId::ARBEL,
        DeviceId::SINAI,
        DeviceId::SINAI_OLD,
    ];
    [VENDOR_MELLANOX, VENDOR_TOPSPIN].contains(&vendor) && all.contains(&DeviceId(device))
}

/// The only HCA that there is.
fn only() -> Result<Slot, Error> {
    let path = PathBuf::from(BUS).join("devices");
    let entries = std::fs::read_dir(&path).map_err(|error| Error::File { path, error })?;
    let number = |slot: Slot, file: &str| {
        let text = std::fs::read_to_string(folder(slot).join(file)).ok()?;
        u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    let mut found: Vec<Slot> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&slot| {
            let (vendor, device) = (number(slot, "vendor"), number(slot, "device"));
            vendor
                .zip(device)
                .is_some_and(|(vendor, device)| is_hca(vendor, device))
        })
        .collect();
    found.sort();
    match found[..] {
        [slot] => Ok(slot),
        [] => Err(Error::NoHca),
        _ => Err(Error::Several(found)),
    }
}

/// Where the memory of all devices is, and what bridges hand on: first and last bytes. The device must not see memory there:
/// another device may answer in its place, and a Tavor does not leave the chip for an address of its own attached memory.
pub(crate) fn windows() -> Result<Vec<(u64, u64)>, Error> {
    let path = PathBuf::from(BUS).join("devices");
    let entries = std::fs::read_dir(&path).map_err(|error| Error::File { path, error })?;
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let text = read(entry.path().join("resource"))?;
        all.extend(text.lines().filter_map(range));
    }
    Ok(all)
}

/// The first place for `len` bytes, of which `from` and those beyond are multiples of `align`, clear of `windows`.
pub(crate) fn clear_of(windows: &[(u64, u64)], from: u64, len: u64, align: u64) -> Option<u64> {
    let mut at = from;
    // Each window is passed once at most.
    for _ in 0..=windows.len() {
        let last = at.checked_add(len)?.checked_sub(1)?;
        let hit = windows
            .iter()
            .find(|(first, end)| *first <= last && at <= *end);
        let Some((_, end)) = hit else {
            return Some(at);
        };
        at = end.checked_add(1)?.checked_next_multiple_of(align)?;
    }
    None
}

/// First and last byte of memory in a line of `resource`.
fn range(line: &str) -> Option<(u64, u64)> {
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let words: Vec<u64> = line.split_whitespace().filter_map(number).collect();
    match words[..] {
        [first, last, flags] if flags & MEMORY != 0 && last >= first => Some((first, last)),
        _ => None,
    }
}

/// Lengths of the memory BARs: a line each, first and last byte and flags.
fn bars(text: &str) -> [u64; 6] {
    let mut bars = [0; 6];
    for (bar, line) in bars.iter_mut().zip(text.lines()) {
        *bar = range(line).map_or(0, |(first, last)| (last - first).saturating_add(1));
    }
    bars
}

/// A device bound to a driver; dropped, it is bound to what it was bound to before.
#[derive(Debug)]
pub(crate) struct Binding {
    slot: Slot,
    driver: &'static str,
    /// What it was bound to before, if that was not this driver already.
    before: Option<Option<String>>,
}

impl Binding {
    /// Binds it to `driver`, whose module is loaded if it can be. Blocks.
    pub fn new(function: &Function, driver: &'static str, modules: &[&str]) -> Result<Self, Error> {
        let slot = function.slot;
        if function.driver().as_deref() == Some(driver) {
            return Ok(Self {
                slot,
                driver,
                before: None,
            });
        }
        if !PathBuf::from(BUS).join("drivers").join(driver).exists() {
            // It may be built in, or the program is not there; what counts is whether the driver is there then.
            let loaded = std::process::Command::new("modprobe")
                .arg("-a")
                .args(modules)
                .status();
            log::debug!("modprobe: {loaded:?}");
        }
        let before = function.driver();
        if before.is_some() {
            write(function.folder().join("driver/unbind"), &slot.to_string())?;
        }
        // From here on, dropping it puts all back.
        let made = Self {
            slot,
            driver,
            before: Some(before),
        };
        write(function.folder().join("driver_override"), driver)?;
        write(PathBuf::from(BUS).join("drivers_probe"), &slot.to_string())?;
        let start = Instant::now();
        while function.driver().as_deref() != Some(driver) {
            if start.elapsed() > PATIENCE {
                return Err(Error::NotTaken { slot, driver });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(made)
    }

    fn put_back(&self, before: Option<&str>) -> Result<(), Error> {
        let slot = self.slot.to_string();
        // A newline is how it is cleared.
        write(folder(self.slot).join("driver_override"), "\n")?;
        let unbind = PathBuf::from(BUS)
            .join("drivers")
            .join(self.driver)
            .join("unbind");
        let unbound = write(unbind, &slot);
        match before {
            Some(driver) => write(
                PathBuf::from(BUS).join("drivers").join(driver).join("bind"),
                &slot,
            ),
            None => unbound,
        }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = self.put_back(before.as_deref())
        {
            log::warn!("{}: the driver of before is not back: {error}", self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_reads_as_it_is_written_and_its_domain_may_be_left_out() {
        let slot: Slot = "0001:04:1f.7".parse().unwrap();
        assert_eq!(slot.to_string(), "0001:04:1f.7");
        assert_eq!(
            "04:1f.7".parse::<Slot>().unwrap().to_string(),
            "0000:04:1f.7"
        );
        for wrong in [
            "",
            "4",
            "0000:04:20.0",
            "04:00.8",
            "0000:100:00.0",
            "04:00.",
            "+4:00.0",
        ] {
            assert!(wrong.parse::<Slot>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_is_no_memory_bar_and_an_absent_one_has_no_length() {
        let text = "0x00000000fe000000 0x00000000fe0fffff 0x0000000000140204
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000000000000c000 0x000000000000c0ff 0x0000000000040101
nonsense
0x000000f0 0x00000010 0x00000200";
        assert_eq!(bars(text), [0x10_0000, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn memory_for_the_device_is_placed_behind_windows_that_are_in_the_way() {
        const G: u64 = 1 << 30;
        let windows = [
            (6 * G, 6 * G + 4095),
            (4 * G, 4 * G + (128 << 20) - 1),
            (0, 4095),
        ];
        assert_eq!(
            clear_of(&windows, 4 * G, G, 2 << 20),
            Some(4 * G + (128 << 20))
        );
        assert_eq!(
            clear_of(&windows, 4 * G, 2 * G, 2 << 20),
            Some(6 * G + (2 << 20))
        );
        assert_eq!(clear_of(&[], 4 * G, G, 2 << 20), Some(4 * G));
        assert_eq!(clear_of(&[(0, u64::MAX)], 4 * G, G, 2 << 20), None);
    }

    #[test]
    fn a_bridge_of_a_tavor_is_no_hca() {
        assert!(is_hca(0x15b3, 0x5a44) && is_hca(0x1867, 0x6274));
        assert!(!is_hca(0x15b3, 0x5a46) && !is_hca(0x8086, 0x5a44));
    }
}
