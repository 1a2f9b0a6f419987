#!/usr/bin/env python3
"""Checks a capture (pcap of ERF records) without any code of ours: ICRC and VCRC of every packet by a second
formulation of the polynomials, and what tshark thinks of it."""
import collections
import struct
import subprocess
import sys
import zlib


def records(path):
    data = open(path, "rb").read()
    magic, = struct.unpack_from("<I", data)
    if magic not in (0xA1B2C3D4, 0xA1B23C4D):
        sys.exit(f"{path}: no pcap file of this byte order")
    link, = struct.unpack_from("<I", data, 20)
    if link != 197:
        sys.exit(f"{path}: link type {link}, expected 197 (ERF)")
    at = 24
    while at < len(data):
        _, _, captured, wire = struct.unpack_from("<IIII", data, at)
        at += 16
        record = data[at : at + captured]
        at += captured
        if captured != wire or len(record) != captured:
            sys.exit(f"{path}: a record is cut short")
        if record[8] & 0x7F != 21:
            sys.exit(f"{path}: ERF type {record[8]}, expected 21 (InfiniBand)")
        rlen, = struct.unpack_from(">H", record, 10)
        wlen, = struct.unpack_from(">H", record, 14)
        if rlen != captured:
            sys.exit(f"{path}: an ERF record says {rlen} bytes and has {captured}")
        yield record[16 : 16 + wlen]


def icrc(packet):
    """CRC-32 with the variant fields as ones (protocols 1.9)."""
    body = bytearray(packet[:-6])
    lnh = body[1] & 3
    if lnh == 3:
        body[0:8] = b"\xff" * 8
        body[8] |= 0x0F
        body[9:12] = b"\xff" * 3
        body[15] = 0xFF
        body[52] = 0xFF
    elif lnh == 2:
        body[0] |= 0xF0
        body[12] = 0xFF
    else:
        return None
    return struct.pack("<I", zlib.crc32(bytes(body)))


def vcrc_table():
    table = []
    for byte in range(256):
        register = byte
        for _ in range(8):
            register = (register >> 1) ^ (0xD008 if register & 1 else 0)
        table.append(register)
    return table


TABLE = vcrc_table()


def vcrc(packet):
    """CRC-16 of polynomial 0x100B, reflected (protocols 1.10)."""
    register = 0xFFFF
    for byte in packet[:-2]:
        register = (register >> 8) ^ TABLE[(register ^ byte) & 0xFF]
    return struct.pack("<H", register ^ 0xFFFF)


def main():
    path = sys.argv[1]
    wanted = sys.argv[2:]
    count = 0
    for count, packet in enumerate(records(path), 1):
        words = struct.unpack_from(">H", packet, 4)[0] & 0x7FF
        if len(packet) != words * 4 + 2:
            sys.exit(f"packet {count}: LRH says {words} words, {len(packet)} bytes are there")
        expected = icrc(packet)
        if expected is not None and packet[-6:-2] != expected:
            sys.exit(f"packet {count}: ICRC {packet[-6:-2].hex()}, computed {expected.hex()}")
        if packet[-2:] != vcrc(packet):
            sys.exit(f"packet {count}: VCRC {packet[-2:].hex()}, computed {vcrc(packet).hex()}")
    if count == 0:
        sys.exit(f"{path}: no packets")
    print(f"{path}: ICRC and VCRC of {count} packets are right")

    def tshark(*words):
        done = subprocess.run(
            ["tshark", "-r", path, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    # Warnings and errors; notes and chats are remarks on the traffic and not on its encoding.
    bad = tshark("-Y", "_ws.malformed || _ws.expert.severity >= 0x600000", "-T", "fields",
                 "-e", "frame.number", "-e", "_ws.col.Protocol", "-e", "_ws.expert.message",
                 "-e", "_ws.col.Info")
    if bad:
        print("\n".join(bad[:20]))
        sys.exit(f"{path}: tshark objects to {len(bad)} packets")
    kinds = collections.Counter()
    for line in tshark("-T", "fields", "-e", "frame.protocols", "-e", "infiniband.mad.mgmtclass"):
        protocols, _, mad = line.partition("\t")
        for name in protocols.split(":"):
            kinds[name] += 1
        if mad:
            kinds[f"mad {mad}"] += 1
    print("tshark sees: " + ", ".join(f"{name} {number}" for name, number in sorted(kinds.items())))
    missing = [name for name in wanted if not kinds[name]]
    if missing:
        sys.exit(f"{path}: no packet of {', '.join(missing)}")


main()
