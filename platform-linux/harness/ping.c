/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ping SOCKET OWN-ADDRESS PEER COUNT: brings up the HCA model behind SOCKET, and pings PEER over IPoIB. What an operating
 * system would do above the stack, address resolution and echoes, is here as far as that takes.
 */
#include "kernel.h"

#include <arpa/inet.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDRESS = 20, ARP = 0x0806, IPV4 = 0x0800, ECHO_LEN = 20 + 8 + 32, ARP_LEN = 8 + 2 * (ADDRESS + 4) };

static const uint64_t SECOND = 1000000000;

struct openib_packet {
	const uint8_t *bytes;
};

/* The interface, and what the program knows of its peer. */
struct openib_net {
	uint8_t address[ADDRESS], broadcast[ADDRESS], peer_address[ADDRESS];
	struct in_addr own, peer;
	bool up, resolved;
	uint16_t sent, answered;
	uint64_t sent_at;
	/* Datagrams are handed on with the host locked: one that is to be answered waits until it is not. */
	uint8_t arp_reply[ARP_LEN], arp_reply_to[ADDRESS];
	bool reply_waits;
};

bool openib_os_fill(struct openib_packet *packet, uint8_t *to, size_t len, bool offered)
{
	(void)offered; /* ICMP is not among what it is about. */
	memcpy(to, packet->bytes, len);
	return false;
}

static bool send_datagram(struct openib_host *host, const uint8_t *to, uint16_t ether_type, const uint8_t *bytes,
			  size_t len)
{
	struct openib_packet packet = { bytes };

	return openib_send(host, 0, to, ether_type, &packet, len, false, NULL) == OPENIB_SENT_TAKEN;
}

/* ARP over InfiniBand: RFC 4391, 9.1.1. */
static void make_arp(const struct openib_net *net, uint8_t *arp, uint8_t operation, const uint8_t *target)
{
	static const uint8_t head[] = { 0, 32, 8, 0, ADDRESS, 4, 0 };

	memset(arp, 0, ARP_LEN);
	memcpy(arp, head, sizeof(head));
	arp[7] = operation;
	memcpy(arp + 8, net->address, ADDRESS);
	memcpy(arp + 8 + ADDRESS, &net->own, 4);
	if (target)
		memcpy(arp + 12 + ADDRESS, target, ADDRESS);
	memcpy(arp + 12 + 2 * ADDRESS, &net->peer, 4);
}

static uint16_t checksum(const uint8_t *bytes, size_t len)
{
	uint32_t sum = 0;
	size_t at;

	for (at = 0; at < len; at += 2)
		sum += bytes[at] << 8 | bytes[at + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static void put16(uint8_t *to, uint16_t value)
{
	to[0] = value >> 8;
	to[1] = value;
}

static void make_echo(const struct openib_net *net, uint8_t *echo)
{
	memset(echo, 0, ECHO_LEN);
	echo[0] = 0x45;
	put16(echo + 2, ECHO_LEN);
	echo[8] = 64;
	echo[9] = 1;
	memcpy(echo + 12, &net->own, 4);
	memcpy(echo + 16, &net->peer, 4);
	put16(echo + 10, checksum(echo, 20));
	echo[20] = 8;
	put16(echo + 26, net->sent);
	memset(echo + 28, (uint8_t)net->sent, 32);
	put16(echo + 22, checksum(echo + 20, ECHO_LEN - 20));
}

static void receive_arp(struct openib_net *net, const uint8_t *arp, size_t len)
{
	if (len < ARP_LEN || arp[1] != 32 || arp[4] != ADDRESS || memcmp(arp + 12 + 2 * ADDRESS, &net->own, 4) != 0 ||
	    memcmp(arp + 8 + ADDRESS, &net->peer, 4) != 0)
		return;
	memcpy(net->peer_address, arp + 8, ADDRESS);
	net->resolved = true;
	if (arp[7] == 1) {
		make_arp(net, net->arp_reply, 2, net->peer_address);
		memcpy(net->arp_reply_to, net->peer_address, ADDRESS);
		net->reply_waits = true;
	}
}

static void receive_ip(struct openib_net *net, const uint8_t *ip, size_t len)
{
	char text[INET_ADDRSTRLEN];
	double ms;

	if (len != ECHO_LEN || ip[0] != 0x45 || ip[9] != 1 || ip[20] != 0 || checksum(ip, 20) != 0 ||
	    checksum(ip + 20, ECHO_LEN - 20) != 0 || memcmp(ip + 12, &net->peer, 4) != 0 ||
	    (ip[26] << 8 | ip[27]) != net->sent)
		return;
	net->answered++;
	ms = (openib_os_now() - net->sent_at) / 1e6;
	printf("answer %u from %s in %.3f ms\n", net->answered, inet_ntop(AF_INET, &net->peer, text, sizeof(text)), ms);
}

void openib_os_receive(struct openib_net *net, openib_arrival arrival, uint16_t ether_type, const uint8_t *data,
		       size_t len, bool verified)
{
	(void)verified;
	if (ether_type == ARP)
		receive_arp(net, data, len);
	else if (ether_type == IPV4 && arrival == OPENIB_ARRIVAL_HOST)
		receive_ip(net, data, len);
}

/* Sees to it that the interface's state is known. */
static void look(struct openib_host *host, struct openib_net *net)
{
	struct openib_interface_state state;

	if (!openib_look(host, 0, &state))
		errx(1, "the interface is gone");
	if (state.up && !net->up)
		printf("the interface is up: LID %u, MTU %u\n", state.lid, state.mtu);
	net->up = state.up;
	memcpy(net->address, state.address, ADDRESS);
	memcpy(net->broadcast, state.broadcast, ADDRESS);
}

/* One round: what is due, what blocks, and what changed. Says until when there is nothing to do. */
static uint64_t drive(struct openib_host *host, struct openib_net *net)
{
	struct openib_poll_result result = { 0 };

	if (openib_poll(host, 64, &result) != OPENIB_OUTCOME_OK)
		errx(1, "the HCA failed");
	if (result.changed)
		look(host, net);
	if (result.jobs) {
		/* A kernel has a thread for this. */
		while (openib_run_job(host))
			;
		return 0;
	}
	return result.more ? 0 : result.next;
}

/* Asks for the peer's address, or sends an echo request; says when the next one is due. */
static uint64_t talk(struct openib_host *host, struct openib_net *net, uint64_t now)
{
	uint8_t bytes[ARP_LEN > ECHO_LEN ? ARP_LEN : ECHO_LEN];

	if (!net->resolved) {
		make_arp(net, bytes, 1, NULL);
		send_datagram(host, net->broadcast, ARP, bytes, ARP_LEN);
		return now + SECOND / 2;
	}
	net->sent++;
	net->sent_at = now;
	make_echo(net, bytes);
	send_datagram(host, net->peer_address, IPV4, bytes, ECHO_LEN);
	return now + SECOND / 5;
}

int main(int argc, char **argv)
{
	struct openib_device device = { 0 };
	struct openib_config config = { .description = "harness", .messages = true, .send_frames = 32, .recv_frames = 64 };
	struct openib_identity identity = { 0 };
	struct openib_interface_state state;
	struct openib_net net = { 0 };
	struct openib_host *host;
	uint64_t deadline, next, due = 0, now;
	int count;

	if (argc != 5 || inet_pton(AF_INET, argv[2], &net.own) != 1 || inet_pton(AF_INET, argv[3], &net.peer) != 1)
		errx(1, "ping SOCKET OWN-ADDRESS PEER COUNT");
	count = atoi(argv[4]);
	config.debug = getenv("OPENIB_DEBUG") != NULL;
	setvbuf(stdout, NULL, _IOLBF, 0);

	device_attach(&device, argv[1]);
	if (openib_open(&device, &config, &host) != OPENIB_OUTCOME_OK)
		errx(1, "no HCA");
	openib_identify(host, &identity);
	printf("an HCA with the GUID %016llx, firmware %u.%u.%u, %u ports, %s\n", (unsigned long long)identity.node_guid,
	       identity.firmware[0], identity.firmware[1], identity.firmware[2], identity.ports,
	       identity.messages ? "MSI-X" : "INTx");
	if (openib_add(host, &net, 1, 0xffff) != OPENIB_OUTCOME_OK || openib_start(host) != OPENIB_OUTCOME_OK)
		errx(1, "no stack");
	openib_set_up(host, 0, true);

	deadline = openib_os_now() + 30 * SECOND;
	while (net.answered < count && (now = openib_os_now()) < deadline) {
		next = drive(host, &net);
		if (net.reply_waits) {
			net.reply_waits = false;
			send_datagram(host, net.arp_reply_to, ARP, net.arp_reply, ARP_LEN);
		}
		if (net.up && now >= due)
			due = talk(host, &net, now);
		if (net.up && due < next)
			next = due;
		device_wait(&device, next < deadline ? next : deadline);
	}
	printf("%u of %d echoes were answered\n", net.answered, count);

	/* An orderly end: the groups are left first. */
	openib_set_up(host, 0, false);
	deadline = openib_os_now() + SECOND;
	do {
		next = drive(host, &net);
		device_wait(&device, next < deadline ? next : deadline);
		openib_look(host, 0, &state);
	} while (!state.idle && openib_os_now() < deadline);
	if (openib_close(host) != OPENIB_OUTCOME_OK)
		errx(1, "the host does not close");
	printf("%zu pieces of memory were left behind\n", memory_in_use());
	return net.answered < count || memory_in_use() != 0;
}
