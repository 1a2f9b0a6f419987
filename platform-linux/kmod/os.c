// SPDX-License-Identifier: MIT OR GPL-2.0
/* What the library asks of a kernel, on Linux. Each function is one of include/openib.h; contexts are written there. */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait_bit.h>

#include "kernel.h"

const char *openib_os_name(struct openib_device *device)
{
	return pci_name(device->pdev);
}

/* ---- registers and configuration space ---- */

uint64_t openib_os_bar_len(struct openib_device *device, uint32_t bar)
{
	if (bar >= PCI_STD_NUM_BARS || !(pci_resource_flags(device->pdev, bar) & IORESOURCE_MEM))
		return 0;
	return pci_resource_len(device->pdev, bar);
}

void *openib_os_map(struct openib_device *device, uint32_t bar, uint64_t at, size_t len, bool *write_combining)
{
	resource_size_t start = pci_resource_start(device->pdev, bar) + at;
	void __iomem *map = NULL;

	if (*write_combining)
		map = ioremap_wc(start, len);
	if (!map) {
		*write_combining = false;
		map = ioremap(start, len);
	}
	return (void __force *)map;
}

void openib_os_unmap(struct openib_device *device, void *map)
{
	iounmap((void __iomem __force *)map);
}

/* readl and its like swap on a big-endian machine, so that what they give is little-endian on the bus everywhere. */
uint32_t openib_os_read32(void *map, size_t offset)
{
	return swab32(readl((void __iomem __force *)map + offset));
}

void openib_os_write32(void *map, size_t offset, uint32_t value)
{
	writel(swab32(value), (void __iomem __force *)map + offset);
}

#ifdef CONFIG_64BIT
uint64_t openib_os_read64(void *map, size_t offset)
{
	return swab64(readq((void __iomem __force *)map + offset));
}

void openib_os_write64(void *map, size_t offset, uint64_t value)
{
	writeq(swab64(value), (void __iomem __force *)map + offset);
}
#else
static DEFINE_SPINLOCK(halves);

uint64_t openib_os_read64(void *map, size_t offset)
{
	u64 high = openib_os_read32(map, offset);

	return high << 32 | openib_os_read32(map, offset + 4);
}

void openib_os_write64(void *map, size_t offset, uint64_t value)
{
	unsigned long flags;

	spin_lock_irqsave(&halves, flags);
	openib_os_write32(map, offset, value >> 32);
	openib_os_write32(map, offset + 4, value);
	spin_unlock_irqrestore(&halves, flags);
}
#endif

uint32_t openib_os_config_read32(struct openib_device *device, uint32_t offset)
{
	u32 value;

	if (pci_read_config_dword(device->pdev, offset, &value))
		return ~0;
	return value;
}

void openib_os_config_write32(struct openib_device *device, uint32_t offset, uint32_t value)
{
	pci_write_config_dword(device->pdev, offset, value);
}

/* ---- memory ---- */

uint8_t *openib_os_dma_alloc(struct openib_device *device, size_t len, size_t align, uint64_t *bus)
{
	struct device *dev = &device->pdev->dev;
	dma_addr_t at;
	void *memory = dma_alloc_coherent(dev, len, &at, GFP_KERNEL);

	/* Pages that lie together are aligned to the power of two that they are, and so is what an IOMMU gives. */
	if (memory && ((uintptr_t)memory | at) & (align - 1)) {
		dma_free_coherent(dev, len, memory, at);
		memory = NULL;
	}
	*bus = at;
	return memory;
}

void openib_os_dma_free(struct openib_device *device, uint8_t *memory, uint64_t bus, size_t len)
{
	dma_free_coherent(&device->pdev->dev, len, memory, bus);
}

static enum dma_data_direction direction(openib_way way)
{
	return way == OPENIB_WAY_TO_DEVICE ? DMA_TO_DEVICE :
	       way == OPENIB_WAY_FROM_DEVICE ? DMA_FROM_DEVICE :
					       DMA_BIDIRECTIONAL;
}

bool openib_os_dma_map(struct openib_device *device, uint8_t *memory, size_t len, openib_way way, uint64_t *bus)
{
	struct device *dev = &device->pdev->dev;
	dma_addr_t at = dma_map_single(dev, memory, len, direction(way));

	*bus = at;
	return !dma_mapping_error(dev, at);
}

void openib_os_dma_unmap(struct openib_device *device, uint64_t bus, size_t len, openib_way way)
{
	dma_unmap_single(&device->pdev->dev, bus, len, direction(way));
}

void openib_os_dma_sync(struct openib_device *device, uint64_t bus, size_t len, openib_way way, bool to_device)
{
	if (to_device)
		dma_sync_single_for_device(&device->pdev->dev, bus, len, direction(way));
	else
		dma_sync_single_for_cpu(&device->pdev->dev, bus, len, direction(way));
}

uint8_t *openib_os_alloc(size_t len, size_t align)
{
	/* Powers of two are aligned to themselves, and whatever is larger than a page to a page. */
	if (align > ARCH_KMALLOC_MINALIGN && len < PAGE_SIZE)
		len = roundup_pow_of_two(max(len, align));
	return kvzalloc(len, GFP_KERNEL);
}

void openib_os_free(uint8_t *memory, size_t len, size_t align)
{
	kvfree(memory);
}

/* ---- time and waiting ---- */

uint64_t openib_os_now(void)
{
	return ktime_get_ns();
}

void openib_os_sleep(uint64_t nanoseconds)
{
	u64 us = div_u64(min_t(u64, nanoseconds, 3600ULL * NSEC_PER_SEC) + NSEC_PER_USEC - 1, NSEC_PER_USEC);

	if (us < 20 * USEC_PER_MSEC)
		usleep_range(us, us + us / 4 + 1);
	else
		msleep(div_u64(us + USEC_PER_MSEC - 1, USEC_PER_MSEC));
}

void openib_os_wait(const uint32_t *word, uint32_t value, uint64_t deadline)
{
	void *key = (void *)word;
	u64 now = ktime_get_ns();

	if (deadline == U64_MAX)
		wait_var_event(key, READ_ONCE(*word) != value);
	else if (deadline > now)
		wait_var_event_timeout(key, READ_ONCE(*word) != value,
				       min_t(u64, nsecs_to_jiffies(deadline - now) + 1, MAX_SCHEDULE_TIMEOUT - 1));
}

void openib_os_wake_word(const uint32_t *word)
{
	/* The change of the word before the look at who waits. */
	smp_mb();
	wake_up_var((void *)word);
}

/* ---- locks ---- */

/* Where a lock fits its room and may move, it lies there; in a debugging or real-time kernel it does neither. */
#if !defined(CONFIG_DEBUG_SPINLOCK) && !defined(CONFIG_DEBUG_LOCK_ALLOC) && !defined(CONFIG_PREEMPT_RT)
#define IN_ROOM 1
static_assert(sizeof(spinlock_t) <= sizeof(struct openib_lock_room));
#else
#define IN_ROOM 0
#endif

static inline spinlock_t *lock_of(struct openib_lock_room *room)
{
	return IN_ROOM ? (spinlock_t *)room : (spinlock_t *)room->words[0];
}

#ifdef CONFIG_LOCKDEP
/* A class for each name, by which lockdep tells which locks are taken inside which. */
#define CLASSES 24
static struct {
	struct lock_class_key key;
	const uint8_t *name;
	char text[24];
} classes[CLASSES];
static DEFINE_MUTEX(classes_lock);

static void name_class(spinlock_t *lock, const uint8_t *name, size_t len)
{
	int at = 0;

	mutex_lock(&classes_lock);
	while (at < CLASSES - 1 && classes[at].name && classes[at].name != name)
		at++;
	if (!classes[at].name) {
		classes[at].name = name;
		snprintf(classes[at].text, sizeof(classes[at].text), "openib %.*s", (int)len, name);
	}
	mutex_unlock(&classes_lock);
	lockdep_set_class_and_name(lock, &classes[at].key, classes[at].text);
}
#else
static void name_class(spinlock_t *lock, const uint8_t *name, size_t len)
{
}
#endif

void openib_os_lock_init(struct openib_lock_room *room, openib_lock_kind kind, const uint8_t *name, size_t len)
{
	if (!IN_ROOM)
		room->words[0] = (uintptr_t)kzalloc(sizeof(spinlock_t), GFP_KERNEL | __GFP_NOFAIL);
	spin_lock_init(lock_of(room));
	name_class(lock_of(room), name, len);
}

void openib_os_lock_exit(struct openib_lock_room *room, openib_lock_kind kind)
{
	if (!IN_ROOM)
		kfree(lock_of(room));
}

void openib_os_lock(struct openib_lock_room *room)
{
	spin_lock_bh(lock_of(room));
}

void openib_os_unlock(struct openib_lock_room *room)
{
	spin_unlock_bh(lock_of(room));
}

size_t openib_os_lock_interrupt(struct openib_lock_room *room)
{
	unsigned long flags;

	spin_lock_irqsave(lock_of(room), flags);
	return flags;
}

void openib_os_unlock_interrupt(struct openib_lock_room *room, size_t saved)
{
	spin_unlock_irqrestore(lock_of(room), saved);
}

/* ---- interrupts ---- */

int32_t openib_os_alloc_vectors(struct openib_device *device, uint32_t want)
{
	int given = -1;

	if (want > 0)
		given = pci_alloc_irq_vectors(device->pdev, 1, want, PCI_IRQ_MSIX);
	if (given > 0)
		return given;
	given = pci_alloc_irq_vectors(device->pdev, 1, 1, PCI_IRQ_INTX);
	return given > 0 ? 0 : given;
}

void openib_os_free_vectors(struct openib_device *device)
{
	pci_free_irq_vectors(device->pdev);
}

static irqreturn_t interrupt(int irq, void *vector)
{
	return openib_interrupt(vector) ? IRQ_HANDLED : IRQ_NONE;
}

bool openib_os_bind_vector(struct openib_device *device, uint32_t number, struct openib_vector *vector)
{
	unsigned long flags = device->pdev->msix_enabled ? 0 : IRQF_SHARED;
	int irq = pci_irq_vector(device->pdev, number);

	if (irq < 0 || number >= OPENIB_VECTORS)
		return false;
	snprintf(device->vector_names[number], sizeof(device->vector_names[number]), OPENIB_NAME "-%u@%s", number,
		 pci_name(device->pdev));
	device->vectors[number] = vector;
	return !request_irq(irq, interrupt, flags, device->vector_names[number], vector);
}

void openib_os_unbind_vector(struct openib_device *device, uint32_t number)
{
	free_irq(pci_irq_vector(device->pdev, number), device->vectors[number]);
}

void openib_os_wake(struct openib_device *device)
{
	/* Nothing happens before polling is enabled. In a thread, the soft interrupt runs when these are enabled again. */
	if (in_task() && !irqs_disabled()) {
		local_bh_disable();
		napi_schedule(&device->napi);
		local_bh_enable();
	} else {
		napi_schedule(&device->napi);
	}
}

/* ---- words ---- */

void openib_os_log(openib_level level, const uint8_t *text, size_t len)
{
	int count = len;

	switch (level) {
	case OPENIB_LEVEL_ERROR:
		pr_err(OPENIB_NAME " %.*s\n", count, text);
		break;
	case OPENIB_LEVEL_WARNING:
		pr_warn(OPENIB_NAME " %.*s\n", count, text);
		break;
	case OPENIB_LEVEL_INFO:
		pr_info(OPENIB_NAME " %.*s\n", count, text);
		break;
	default:
		printk(KERN_DEBUG OPENIB_NAME " %.*s\n", count, text);
		break;
	}
}

void openib_os_panic(const uint8_t *text, size_t len)
{
	pr_emerg(OPENIB_NAME " is broken: %.*s\n", (int)len, text);
	BUG();
}
