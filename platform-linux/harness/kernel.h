/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A kernel of a few hundred lines: what is behind `struct openib_device` here. */
#ifndef KERNEL_H
#define KERNEL_H

#include "../include/openib.h"
#include "vfio_user.h"

enum { VECTORS = 4, BARS = 6 };

struct interrupt {
	struct openib_device *device;
	struct openib_vector *vector; /* null: not bound */
	pthread_t thread;
	int event;
	int end;
};

struct openib_device {
	const char *name;
	struct vfio_user bus;
	uint64_t bar_len[BARS];
	int wake; /* an event file: the host is to be polled */
	bool pin;
	struct interrupt interrupts[VECTORS];
	size_t allocations; /* that were not given back */
};

/* Finds the device behind a socket and makes it ready, as firmware and a PCI bus driver would. */
void device_attach(struct openib_device *device, const char *socket);
/* Waits until the host is to be polled, or until the clock shows `deadline`. */
void device_wait(struct openib_device *device, uint64_t deadline);
/* Pieces of memory that the library has not given back. */
size_t memory_in_use(void);

#endif
