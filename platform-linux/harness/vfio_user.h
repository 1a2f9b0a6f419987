/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A PCI device behind a socket, as `openib-sim serve` has them: the client's side of vfio-user, as much as is needed. */
#ifndef VFIO_USER_H
#define VFIO_USER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CONFIG_SPACE = 7, PIN = 0, MESSAGES = 2 };

struct vfio_user {
	int socket;
	uint16_t id;
	pthread_mutex_t lock; /* one message after the other */
};

/* All of them end the program if the other side does not do as it should. */
void vfio_user_connect(struct vfio_user *device, const char *path);
uint64_t vfio_user_region_len(struct vfio_user *device, uint32_t region);
void vfio_user_load(struct vfio_user *device, uint32_t region, uint64_t offset, void *data, uint32_t len);
void vfio_user_store(struct vfio_user *device, uint32_t region, uint64_t offset, const void *data, uint32_t len);
/* The device reaches `len` bytes of `file`, from its beginning, at `bus`. */
void vfio_user_map(struct vfio_user *device, int file, uint64_t bus, uint64_t len);
/* An interrupt of this kind writes to `file`; -1: it no longer does. */
void vfio_user_interrupt(struct vfio_user *device, uint32_t kind, uint32_t number, int file);
/* The pin was served: tell again if it is still up. */
void vfio_user_unmask_pin(struct vfio_user *device);

#endif
