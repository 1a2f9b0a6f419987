//! As much of an ELF object as it takes to say how large the frames of its functions are.

use std::collections::BTreeMap;

/// Bytes of a section's header, of a symbol, of a relocation.
const HEADER: usize = 64;
const SYMBOL: usize = 24;
const RELOCATION: usize = 24;

/// Kinds of sections: symbols, relocations with addends.
const SYMTAB: u32 = 2;
const RELA: u32 = 4;
/// Kind of a symbol that is a function.
const FUNCTION: u8 = 2;

/// A 64-bit little-endian object.
struct Object<'a>(&'a [u8]);

/// One section.
#[derive(Clone, Copy)]
struct Section {
    name: u32,
    kind: u32,
    at: usize,
    len: usize,
    link: usize,
    info: usize,
}

impl<'a> Object<'a> {
    fn number<const N: usize>(&self, at: usize) -> Option<u64> {
        let bytes = self.0.get(at..at.checked_add(N)?)?;
        let mut wide = [0; 8];
        wide.get_mut(..N)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(wide))
    }

    fn sections(&self) -> Option<Vec<Section>> {
        let (first, count) = (self.number::<8>(40)? as usize, self.number::<2>(60)?);
        let section = |index: usize| {
            let at = first + index * HEADER;
            Some(Section {
                name: self.number::<4>(at)? as u32,
                kind: self.number::<4>(at + 4)? as u32,
                at: self.number::<8>(at + 24)? as usize,
                len: self.number::<8>(at + 32)? as usize,
                link: self.number::<4>(at + 40)? as usize,
                info: self.number::<4>(at + 44)? as usize,
            })
        };
        (0..count as usize).map(section).collect()
    }

    fn text(&self, table: &Section, at: u32) -> Option<&'a str> {
        let bytes = self.0.get(table.at + at as usize..table.at + table.len)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        core::str::from_utf8(bytes.get(..end)?).ok()
    }

    /// Section, value, and name, of each symbol; the name of a function alone.
    fn symbols(&self, sections: &[Section]) -> Option<Vec<(u64, u64, &'a str)>> {
        let table = sections.iter().find(|section| section.kind == SYMTAB)?;
        let names = sections.get(table.link)?;
        let symbol = |index: usize| {
            let at = table.at + index * SYMBOL;
            let name = match self.number::<1>(at + 4)? as u8 & 15 {
                FUNCTION => self.text(names, self.number::<4>(at)? as u32)?,
                _ => "",
            };
            Some((self.number::<2>(at + 6)?, self.number::<8>(at + 8)?, name))
        };
        (0..table.len / SYMBOL).map(symbol).collect()
    }
}

/// Functions by the size of their frames, from the sections `.stack_sizes`: for each function its address, which is a
/// relocation, and a size in LEB128.
pub fn frames(bytes: &[u8]) -> Option<BTreeMap<u64, Vec<String>>> {
    let object = Object(bytes);
    let sections = object.sections()?;
    let names = sections.get(object.number::<2>(62)? as usize)?;
    let symbols = object.symbols(&sections)?;
    let functions: BTreeMap<(u64, u64), &str> = symbols
        .iter()
        .filter(|(.., name)| !name.is_empty())
        .map(|(section, value, name)| ((*section, *value), *name))
        .collect();
    let mut frames: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for relocations in sections.iter().filter(|section| section.kind == RELA) {
        let sizes = sections.get(relocations.info)?;
        if object.text(names, sizes.name)? != ".stack_sizes" {
            continue;
        }
        for index in 0..relocations.len / RELOCATION {
            let at = relocations.at + index * RELOCATION;
            let symbol = object.number::<4>(at + 12)? as usize;
            let (section, value, _) = *symbols.get(symbol)?;
            let place = value.wrapping_add(object.number::<8>(at + 16)?);
            let mut at = sizes.at + object.number::<8>(at)? as usize + 8;
            let (mut size, mut shift) = (0, 0);
            loop {
                let byte = object.number::<1>(at)?;
                size |= (byte & 0x7f) << shift;
                if byte & 0x80 == 0 || shift > 49 {
                    break;
                }
                (at, shift) = (at + 1, shift + 7);
            }
            let name = functions.get(&(section, place)).copied().unwrap_or("?");
            frames.entry(size).or_default().push(name.into());
        }
    }
    Some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_object_has_no_frames() {
        assert!(frames(&[]).is_none());
        assert!(frames(&[0xff; 256]).is_none());
    }
}
