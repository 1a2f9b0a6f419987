/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "vfio_user.h"

#include <err.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum command {
	VERSION = 1,
	DMA_MAP = 2,
	GET_REGION_INFO = 5,
	SET_IRQS = 8,
	REGION_READ = 9,
	REGION_WRITE = 10,
};

struct header {
	uint16_t id;
	uint16_t command;
	uint32_t size;
	uint32_t flags;
	uint32_t error;
};

enum { IS_REPLY = 1, NO_REPLY = 1 << 4, IS_ERROR = 1 << 5 };

struct access {
	uint64_t offset;
	uint32_t region;
	uint32_t count;
};

static void receive(int socket, void *data, size_t len)
{
	char *at = data;

	while (len > 0) {
		ssize_t got = recv(socket, at, len, 0);

		if (got <= 0)
			errx(1, "the device is gone");
		at += got;
		len -= got;
	}
}

/* Sends a message of up to two pieces, with a file if it is not -1, and takes the reply into `answer` unless that is null. */
static void ask(struct vfio_user *device, enum command command, const void *body, size_t body_len, const void *data,
		size_t data_len, int file, void *answer, size_t answer_len)
{
	struct header header = {
		.command = command,
		.size = sizeof(header) + body_len + data_len,
		.flags = answer ? 0 : NO_REPLY,
	};
	struct iovec pieces[] = {
		{ &header, sizeof(header) },
		{ (void *)body, body_len },
		{ (void *)data, data_len },
	};
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 3 };
	char rest[256];

	if (file >= 0) {
		struct cmsghdr *carried = &control.align;

		message.msg_control = control.bytes;
		message.msg_controllen = sizeof(control.bytes);
		carried->cmsg_level = SOL_SOCKET;
		carried->cmsg_type = SCM_RIGHTS;
		carried->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(carried), &file, sizeof(int));
	}
	pthread_mutex_lock(&device->lock);
	header.id = device->id++;
	if (sendmsg(device->socket, &message, MSG_NOSIGNAL) != (ssize_t)header.size)
		err(1, "to the device");
	if (answer) {
		struct header reply;
		size_t len;

		receive(device->socket, &reply, sizeof(reply));
		if (reply.id != header.id || !(reply.flags & IS_REPLY) || reply.size < sizeof(reply))
			errx(1, "the device answers something else");
		if (reply.flags & IS_ERROR)
			errx(1, "the device refuses command %d: %s", command, strerror(reply.error));
		len = reply.size - sizeof(reply);
		if (len < answer_len)
			errx(1, "the device's answer to command %d is too short", command);
		receive(device->socket, answer, answer_len);
		for (len -= answer_len; len > 0;) {
			size_t piece = len < sizeof(rest) ? len : sizeof(rest);

			receive(device->socket, rest, piece);
			len -= piece;
		}
	}
	pthread_mutex_unlock(&device->lock);
}

void vfio_user_connect(struct vfio_user *device, const char *path)
{
	static const char capabilities[] = "{\"capabilities\":{}}";
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	uint16_t version[2] = { 0, 1 };

	if (strlen(path) >= sizeof(address.sun_path))
		errx(1, "%s: too long for a socket", path);
	strcpy(address.sun_path, path);
	pthread_mutex_init(&device->lock, NULL);
	device->id = 1;
	device->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (device->socket < 0 || connect(device->socket, (struct sockaddr *)&address, sizeof(address)) < 0)
		err(1, "%s", path);
	ask(device, VERSION, version, sizeof(version), capabilities, sizeof(capabilities), -1, version, sizeof(version));
}

uint64_t vfio_user_region_len(struct vfio_user *device, uint32_t region)
{
	struct {
		uint32_t argsz, flags, index, cap_offset;
		uint64_t size, offset;
	} info = { .argsz = sizeof(info), .index = region };

	ask(device, GET_REGION_INFO, &info, sizeof(info), NULL, 0, -1, &info, sizeof(info));
	return info.size;
}

void vfio_user_load(struct vfio_user *device, uint32_t region, uint64_t offset, void *data, uint32_t len)
{
	struct access access = { offset, region, len };
	struct {
		struct access access;
		char data[8];
	} answer;

	if (len > sizeof(answer.data))
		errx(1, "a load of %u bytes", len);
	ask(device, REGION_READ, &access, sizeof(access), NULL, 0, -1, &answer, sizeof(access) + len);
	memcpy(data, answer.data, len);
}

void vfio_user_store(struct vfio_user *device, uint32_t region, uint64_t offset, const void *data, uint32_t len)
{
	struct access access = { offset, region, len };

	/* Posted, as on a bus; in configuration space it is done when this returns. */
	ask(device, REGION_WRITE, &access, sizeof(access), data, len, -1, region == CONFIG_SPACE ? &access : NULL,
	    sizeof(access));
}

void vfio_user_map(struct vfio_user *device, int file, uint64_t bus, uint64_t len)
{
	struct {
		uint32_t argsz, flags;
		uint64_t offset, address, size;
	} map = { .argsz = sizeof(map), .flags = 3, .address = bus, .size = len };
	char none;

	ask(device, DMA_MAP, &map, sizeof(map), NULL, 0, file, &none, 0);
}

static void set_irqs(struct vfio_user *device, uint32_t flags, uint32_t kind, uint32_t number, uint32_t count, int file)
{
	struct {
		uint32_t argsz, flags, index, start, count;
	} set = { sizeof(set), flags, kind, number, count };
	char none;

	ask(device, SET_IRQS, &set, sizeof(set), NULL, 0, file, &none, 0);
}

void vfio_user_interrupt(struct vfio_user *device, uint32_t kind, uint32_t number, int file)
{
	enum { NO_DATA = 1, EVENT_FILES = 4, TRIGGER = 32 };

	if (file >= 0)
		set_irqs(device, EVENT_FILES | TRIGGER, kind, number, 1, file);
	else if (kind == PIN)
		set_irqs(device, NO_DATA | TRIGGER, kind, 0, 0, -1);
	else
		set_irqs(device, EVENT_FILES | TRIGGER, kind, number, 1, -1); /* no file: nobody is told any more */
}

void vfio_user_unmask_pin(struct vfio_user *device)
{
	enum { NO_DATA = 1, UNMASK = 16 };

	set_irqs(device, NO_DATA | UNMASK, PIN, 0, 1, -1);
}
