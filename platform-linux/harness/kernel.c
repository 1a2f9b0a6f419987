/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The shim of a kernel that is a program: memory from one file that the device reaches too, a thread for each interrupt,
 * and the C library for the rest. docs/embedding.md goes through it from top to bottom.
 */
#define _GNU_SOURCE
#include "kernel.h"

#include <endian.h>
#include <err.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, DMA_PAGES = 16384 };
/* Where the device sees the memory: elsewhere than the program does, so that nobody takes one for the other. */
static const uint64_t DMA_BUS = 0x40000000;

/* ---- DMA memory: pages of one file ---- */

static uint8_t *dma_memory;
static bool dma_taken[DMA_PAGES];
static pthread_mutex_t dma_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_size_t in_use;

static int dma_file(void)
{
	size_t len = (size_t)DMA_PAGES * PAGE;
	int file = memfd_create("dma", MFD_CLOEXEC);
	uint8_t *room;

	if (file < 0 || ftruncate(file, len) < 0)
		err(1, "DMA memory");
	/* At a multiple of its length, so that it is aligned as the device's addresses are. */
	room = mmap(NULL, 2 * len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		err(1, "DMA memory");
	room = (uint8_t *)(((uintptr_t)room + len - 1) & -(uintptr_t)len);
	dma_memory = mmap(room, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
	if (dma_memory == MAP_FAILED)
		err(1, "DMA memory");
	return file;
}

uint8_t *openib_os_dma_alloc(struct openib_device *device, size_t len, size_t align, uint64_t *bus)
{
	size_t pages = len / PAGE, step = align / PAGE, first, run;
	uint8_t *memory = NULL;

	pthread_mutex_lock(&dma_lock);
	for (first = 0; !memory && first + pages <= DMA_PAGES; first += step) {
		for (run = 0; run < pages && !dma_taken[first + run]; run++)
			;
		if (run == pages) {
			memset(&dma_taken[first], true, pages);
			memory = dma_memory + first * PAGE;
			*bus = DMA_BUS + first * PAGE;
			memset(memory, 0, len);
			in_use++;
		}
	}
	pthread_mutex_unlock(&dma_lock);
	return memory;
}

void openib_os_dma_free(struct openib_device *device, uint8_t *memory, uint64_t bus, size_t len)
{
	pthread_mutex_lock(&dma_lock);
	memset(&dma_taken[(bus - DMA_BUS) / PAGE], false, len / PAGE);
	in_use--;
	pthread_mutex_unlock(&dma_lock);
}

bool openib_os_dma_map(struct openib_device *device, uint8_t *memory, size_t len, openib_way way, uint64_t *bus)
{
	size_t distance = memory - dma_memory;

	/* All that the device can reach is that file. */
	if (memory < dma_memory || distance + len > (size_t)DMA_PAGES * PAGE)
		return false;
	*bus = DMA_BUS + distance;
	return true;
}

void openib_os_dma_unmap(struct openib_device *device, uint64_t bus, size_t len, openib_way way)
{
}

void openib_os_dma_sync(struct openib_device *device, uint64_t bus, size_t len, openib_way way, bool to_device)
{
}

/* ---- other memory ---- */

uint8_t *openib_os_alloc(size_t len, size_t align)
{
	void *memory;

	if (posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, len) != 0)
		return NULL;
	in_use++;
	return memset(memory, 0, len);
}

void openib_os_free(uint8_t *memory, size_t len, size_t align)
{
	in_use--;
	free(memory);
}

size_t memory_in_use(void)
{
	return in_use;
}

/* ---- registers ---- */

struct map {
	struct openib_device *device;
	uint32_t bar;
	uint64_t at;
};

const char *openib_os_name(struct openib_device *device)
{
	return device->name;
}

uint64_t openib_os_bar_len(struct openib_device *device, uint32_t bar)
{
	return bar < BARS ? device->bar_len[bar] : 0;
}

void *openib_os_map(struct openib_device *device, uint32_t bar, uint64_t at, size_t len, bool *write_combining)
{
	struct map *map = malloc(sizeof(*map));

	*write_combining = false;
	if (map) {
		*map = (struct map){ device, bar, at };
		in_use++;
	}
	return map;
}

void openib_os_unmap(struct openib_device *device, void *map)
{
	in_use--;
	free(map);
}

uint32_t openib_os_read32(void *at, size_t offset)
{
	struct map *map = at;
	uint32_t value;

	vfio_user_load(&map->device->bus, map->bar, map->at + offset, &value, sizeof(value));
	return be32toh(value);
}

void openib_os_write32(void *at, size_t offset, uint32_t value)
{
	struct map *map = at;

	value = htobe32(value);
	vfio_user_store(&map->device->bus, map->bar, map->at + offset, &value, sizeof(value));
}

uint64_t openib_os_read64(void *at, size_t offset)
{
	struct map *map = at;
	uint64_t value;

	vfio_user_load(&map->device->bus, map->bar, map->at + offset, &value, sizeof(value));
	return be64toh(value);
}

void openib_os_write64(void *at, size_t offset, uint64_t value)
{
	struct map *map = at;

	value = htobe64(value);
	vfio_user_store(&map->device->bus, map->bar, map->at + offset, &value, sizeof(value));
}

uint32_t openib_os_config_read32(struct openib_device *device, uint32_t offset)
{
	uint32_t value;

	vfio_user_load(&device->bus, CONFIG_SPACE, offset, &value, sizeof(value));
	return le32toh(value);
}

void openib_os_config_write32(struct openib_device *device, uint32_t offset, uint32_t value)
{
	value = htole32(value);
	vfio_user_store(&device->bus, CONFIG_SPACE, offset, &value, sizeof(value));
}

/* ---- time and waiting ---- */

uint64_t openib_os_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct timespec timespec(uint64_t nanoseconds)
{
	return (struct timespec){ nanoseconds / 1000000000, nanoseconds % 1000000000 };
}

void openib_os_sleep(uint64_t nanoseconds)
{
	struct timespec until = timespec(openib_os_now() + nanoseconds);

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
		;
}

void openib_os_wait(const uint32_t *word, uint32_t value, uint64_t deadline)
{
	uint64_t now = openib_os_now();
	struct timespec left;

	if (deadline == UINT64_MAX) {
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
	} else if (deadline > now) {
		left = timespec(deadline - now);
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &left, NULL, 0);
	}
}

void openib_os_wake_word(const uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* ---- locks: interrupts are threads here, so that one kind does for all ---- */

void openib_os_lock_init(struct openib_lock_room *room, openib_lock_kind kind, const uint8_t *name, size_t len)
{
	pthread_mutex_t *lock = malloc(sizeof(*lock));

	/* A mutex may not move, the room may. */
	if (!lock)
		errx(1, "no memory for a lock");
	pthread_mutex_init(lock, NULL);
	room->words[0] = (uintptr_t)lock;
	in_use++;
}

void openib_os_lock_exit(struct openib_lock_room *room, openib_lock_kind kind)
{
	in_use--;
	free((void *)room->words[0]);
}

void openib_os_lock(struct openib_lock_room *room)
{
	pthread_mutex_lock((void *)room->words[0]);
}

void openib_os_unlock(struct openib_lock_room *room)
{
	pthread_mutex_unlock((void *)room->words[0]);
}

size_t openib_os_lock_interrupt(struct openib_lock_room *room)
{
	openib_os_lock(room);
	return 0;
}

void openib_os_unlock_interrupt(struct openib_lock_room *room, size_t saved)
{
	openib_os_unlock(room);
}

/* ---- interrupts ---- */

static void *serve(void *argument)
{
	struct interrupt *interrupt = argument;
	struct pollfd files[] = { { interrupt->event, POLLIN, 0 }, { interrupt->end, POLLIN, 0 } };
	uint64_t count;

	for (;;) {
		if (poll(files, 2, -1) < 0)
			continue;
		if (files[1].revents)
			return NULL;
		if (read(interrupt->event, &count, sizeof(count)) != sizeof(count))
			continue;
		openib_interrupt(interrupt->vector);
		if (interrupt->device->pin)
			vfio_user_unmask_pin(&interrupt->device->bus);
	}
}

/* Where in configuration space the function says that it has MSI-X; 0: it has not. */
static uint32_t msix_capability(struct openib_device *device)
{
	uint32_t at = openib_os_config_read32(device, 0x34) & 0xfc, found, steps;

	for (steps = 0; at >= 0x40 && steps < 48; steps++) {
		found = openib_os_config_read32(device, at);
		if ((found & 0xff) == 0x11)
			return at;
		at = found >> 8 & 0xfc;
	}
	return 0;
}

static void turn_messages(struct openib_device *device, bool on)
{
	uint32_t at = msix_capability(device), word;

	if (at) {
		word = openib_os_config_read32(device, at);
		openib_os_config_write32(device, at, on ? word | 1u << 31 : word & ~(1u << 31));
	}
}

int32_t openib_os_alloc_vectors(struct openib_device *device, uint32_t want)
{
	device->pin = want == 0 || !msix_capability(device);
	if (device->pin)
		return 0;
	turn_messages(device, true);
	return want < VECTORS ? want : VECTORS;
}

void openib_os_free_vectors(struct openib_device *device)
{
	if (!device->pin)
		turn_messages(device, false);
}

bool openib_os_bind_vector(struct openib_device *device, uint32_t number, struct openib_vector *vector)
{
	struct interrupt *interrupt = &device->interrupts[number];

	if (number >= VECTORS)
		return false;
	interrupt->device = device;
	interrupt->vector = vector;
	interrupt->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	interrupt->end = eventfd(0, EFD_CLOEXEC);
	if (interrupt->event < 0 || interrupt->end < 0)
		err(1, "event file");
	if (pthread_create(&interrupt->thread, NULL, serve, interrupt) != 0)
		errx(1, "no thread for an interrupt");
	vfio_user_interrupt(&device->bus, device->pin ? PIN : MESSAGES, number, interrupt->event);
	return true;
}

void openib_os_unbind_vector(struct openib_device *device, uint32_t number)
{
	struct interrupt *interrupt = &device->interrupts[number];
	uint64_t one = 1;

	vfio_user_interrupt(&device->bus, device->pin ? PIN : MESSAGES, number, -1);
	if (write(interrupt->end, &one, sizeof(one)) != sizeof(one))
		err(1, "event file");
	pthread_join(interrupt->thread, NULL);
	close(interrupt->event);
	close(interrupt->end);
}

void openib_os_wake(struct openib_device *device)
{
	uint64_t one = 1;

	/* A full counter wakes its reader all the same. */
	if (write(device->wake, &one, sizeof(one)) < 0)
		return;
}

/* ---- words ---- */

void openib_os_log(openib_level level, const uint8_t *text, size_t len)
{
	static const char *const names[] = { "error", "warning", "info", "debug" };

	fprintf(stderr, "%s: %.*s\n", names[level], (int)len, (const char *)text);
}

void openib_os_panic(const uint8_t *text, size_t len)
{
	fprintf(stderr, "the library is broken: %.*s\n", (int)len, (const char *)text);
	abort();
}

/* ---- what a PCI bus driver does ---- */

void device_attach(struct openib_device *device, const char *socket)
{
	uint32_t bar, address = 0xc0000000;
	int file = dma_file();

	device->name = socket;
	device->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (device->wake < 0)
		err(1, "event file");
	vfio_user_connect(&device->bus, socket);
	vfio_user_map(&device->bus, file, DMA_BUS, (uint64_t)DMA_PAGES * PAGE);
	for (bar = 0; bar < BARS; bar++) {
		device->bar_len[bar] = vfio_user_region_len(&device->bus, bar);
		if (device->bar_len[bar] == 0)
			continue;
		/* Each at a multiple of its length; they are powers of two. */
		address = (address + device->bar_len[bar] - 1) & -(uint32_t)device->bar_len[bar];
		openib_os_config_write32(device, 0x10 + 4 * bar, address);
		address += device->bar_len[bar];
	}
	/* Memory space, bus master. */
	openib_os_config_write32(device, 0x04, 0x6);
}

void device_wait(struct openib_device *device, uint64_t deadline)
{
	struct pollfd file = { device->wake, POLLIN, 0 };
	uint64_t now = openib_os_now(), count;
	struct timespec left = timespec(deadline > now ? deadline - now : 0);

	if (ppoll(&file, 1, deadline == UINT64_MAX ? NULL : &left, NULL) > 0 &&
	    read(device->wake, &count, sizeof(count)) < 0)
		return;
}
