// SPDX-License-Identifier: MIT OR GPL-2.0
/* Network interfaces: IPoIB as Linux has it, an address of 20 bytes and a header of 4, over the library's interfaces. */
#include <linux/ethtool.h>
#include <linux/icmpv6.h>
#include <linux/if_arp.h>
#include <linux/ip.h>
#include <linux/rtnetlink.h>
#include <linux/skbuff.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <net/dst.h>
#include <net/icmp.h>
#include <net/ip.h>

#include "kernel.h"

/* What precedes a datagram within the kernel: where to, and the header of RFC 4391. On the wire the library writes it. */
struct header {
	u8 to[20];
	__be16 ether_type;
	__be16 reserved;
};

static_assert(sizeof(struct header) == 24);

#define SMALLEST_MTU 68
/* Of an InfiniBand MTU of 2048. The subnet manager's choice replaces it. */
#define FIRST_MTU 2044
/* A received datagram that is no longer than this lies in one piece, of a longer one the first bytes: headers. */
#define ONE_PIECE 4096
#define FIRST_PIECE 128
/* So many senders may wait to be told of what was too long. */
#define TOO_LONG 64

static int create_header(struct sk_buff *skb, struct net_device *dev, unsigned short type, const void *to,
			 const void *from, unsigned int len)
{
	struct header *header = skb_push(skb, sizeof(*header));

	memcpy(header->to, to ? to : dev->broadcast, sizeof(header->to));
	header->ether_type = htons(type);
	header->reserved = 0;
	return sizeof(*header);
}

static const struct header_ops header_ops = {
	.create = create_header,
};

/* ---- data path ---- */

/* The sum that is wanted is one that an HCA knows: of TCP or UDP right behind the IPv4 header of a whole packet. */
static bool known_sum(const struct sk_buff *skb)
{
	const struct iphdr *header = ip_hdr(skb);

	if (skb->protocol != htons(ETH_P_IP) || skb_network_offset(skb) || skb_headlen(skb) < sizeof(*header) ||
	    ip_is_fragment(header) || skb_checksum_start_offset(skb) != ip_hdrlen(skb))
		return false;
	switch (header->protocol) {
	case IPPROTO_TCP:
		return skb->csum_offset == offsetof(struct tcphdr, check);
	case IPPROTO_UDP:
		return skb->csum_offset == offsetof(struct udphdr, check);
	default:
		return false;
	}
}

bool openib_os_fill(struct openib_packet *packet, uint8_t *to, size_t len, bool offered)
{
	struct sk_buff *skb = (struct sk_buff *)packet;
	bool wanted = skb->ip_summed == CHECKSUM_PARTIAL;
	bool left = wanted && offered && known_sum(skb);

	/* What the HCA does not do is made on the way, where it is wanted. */
	if (wanted && !left)
		skb_copy_and_csum_dev(skb, to);
	else
		skb_copy_bits(skb, 0, to, len);
	return left;
}

/* The path is known to be narrow from now on; telling the sender takes locks that are held here. */
static bool too_long(struct openib_device *device, struct sk_buff *skb, u32 mtu)
{
	skb_dst_update_pmtu_no_confirm(skb, mtu);
	if (skb_queue_len(&device->too_long) >= TOO_LONG)
		return false;
	*(u32 *)skb->cb = mtu;
	skb_queue_tail(&device->too_long, skb);
	queue_work(device->queue, &device->tell);
	return true;
}

void openib_nets_tell(struct work_struct *work)
{
	struct openib_device *device = container_of(work, struct openib_device, tell);
	struct sk_buff *skb;

	while ((skb = skb_dequeue(&device->too_long))) {
		u32 mtu = *(u32 *)skb->cb;

		local_bh_disable();
		if (skb->protocol == htons(ETH_P_IP)) {
			memset(IPCB(skb), 0, sizeof(*IPCB(skb)));
			icmp_send(skb, ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED, htonl(mtu));
		} else if (IS_ENABLED(CONFIG_IPV6) && skb->protocol == htons(ETH_P_IPV6)) {
			memset(IP6CB(skb), 0, sizeof(*IP6CB(skb)));
			icmpv6_send(skb, ICMPV6_PKT_TOOBIG, 0, mtu);
		}
		local_bh_enable();
		kfree_skb(skb);
	}
}

static netdev_tx_t start_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct openib_net *net = netdev_priv(dev);
	struct openib_host *host = READ_ONCE(net->device->host);
	struct openib_packet *packet = (struct openib_packet *)skb;
	bool more = netdev_xmit_more();
	struct header header;
	openib_sent sent;
	u32 mtu = 0;

	if (unlikely(!host || skb_headlen(skb) < sizeof(header)))
		goto drop;
	memcpy(&header, skb->data, sizeof(header));
	__skb_pull(skb, sizeof(header));
	/* A sum that begins in the link header, or lies beyond what is in one piece: from a raw socket, or another machine. */
	if (unlikely(skb->ip_summed == CHECKSUM_PARTIAL &&
		     (skb_checksum_start_offset(skb) < 0 ||
		      skb_checksum_start_offset(skb) + skb->csum_offset + sizeof(__sum16) > skb_headlen(skb))))
		goto drop;
	sent = openib_send(host, net->index, header.to, ntohs(header.ether_type), packet, skb->len, more, &mtu);
	if (unlikely(sent == OPENIB_SENT_FULL)) {
		netif_stop_queue(dev);
		/* What is made up is sent, since nothing else may complete. A completion before this wakes nobody; one after it does. */
		openib_flush(host, net->index);
		smp_mb();
		sent = openib_send(host, net->index, header.to, ntohs(header.ether_type), packet, skb->len, more, &mtu);
		if (sent == OPENIB_SENT_FULL) {
			__skb_push(skb, sizeof(header));
			return NETDEV_TX_BUSY;
		}
		netif_start_queue(dev);
	}
	if (unlikely(sent != OPENIB_SENT_TAKEN))
		goto drop;
	dev_sw_netstats_tx_add(dev, 1, skb->len);
	dev_consume_skb_any(skb);
	return NETDEV_TX_OK;
drop:
	if (host && !more)
		openib_flush(host, net->index);
	dev->stats.tx_dropped++;
	if (!mtu || !too_long(net->device, skb, mtu))
		dev_kfree_skb_any(skb);
	return NETDEV_TX_OK;
}

/* Room for a datagram of `len` bytes and what precedes it, the end in pages of its own if it is long. */
static struct sk_buff *room(struct openib_device *device, size_t len)
{
	size_t first = sizeof(struct header) + FIRST_PIECE;
	struct sk_buff *skb;
	int error;

	if (len <= ONE_PIECE) {
		skb = napi_alloc_skb(&device->napi, sizeof(struct header) + len);
		if (likely(skb))
			skb_put(skb, sizeof(struct header) + len);
		return skb;
	}
	skb = alloc_skb_with_frags(first, len - FIRST_PIECE, PAGE_ALLOC_COSTLY_ORDER, &error, GFP_ATOMIC);
	if (!skb)
		return NULL;
	skb_put(skb, first);
	skb->data_len = len - FIRST_PIECE;
	skb->len += skb->data_len;
	return skb;
}

void openib_os_receive(struct openib_net *net, openib_arrival arrival, uint16_t ether_type, const uint8_t *data,
		       size_t len, bool verified)
{
	struct openib_device *device = net->device;
	struct header *header;
	struct sk_buff *skb = room(device, len);

	if (unlikely(!skb || skb_store_bits(skb, sizeof(*header), data, len))) {
		dev_kfree_skb_any(skb);
		net->dev->stats.rx_dropped++;
		return;
	}
	header = (struct header *)skb->data;
	memset(header, 0, sizeof(*header));
	header->ether_type = htons(ether_type);
	skb->dev = net->dev;
	skb->protocol = htons(ether_type);
	skb->pkt_type = arrival == OPENIB_ARRIVAL_HOST	    ? PACKET_HOST :
			arrival == OPENIB_ARRIVAL_BROADCAST ? PACKET_BROADCAST :
							      PACKET_MULTICAST;
	if (verified && net->dev->features & NETIF_F_RXCSUM)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	skb_reset_mac_header(skb);
	__skb_pull(skb, sizeof(*header));
	dev_sw_netstats_rx_add(net->dev, len);
	/* The host is locked, and the network may answer at once: handed on when it is not. */
	__skb_queue_tail(&device->received, skb);
}

void openib_nets_wake(struct openib_device *device)
{
	unsigned int index;

	for (index = 0; index < device->net_count; index++)
		if (unlikely(netif_queue_stopped(device->nets[index])) && netif_carrier_ok(device->nets[index]))
			netif_wake_queue(device->nets[index]);
}

/* ---- control ---- */

static int open(struct net_device *dev)
{
	struct openib_net *net = netdev_priv(dev);

	netif_start_queue(dev);
	if (net->device->host)
		openib_set_up(net->device->host, net->index, true);
	return 0;
}

static int stop(struct net_device *dev)
{
	struct openib_net *net = netdev_priv(dev);

	netif_stop_queue(dev);
	netif_carrier_off(dev);
	if (net->device->host)
		openib_set_up(net->device->host, net->index, false);
	return 0;
}

static int listen(struct net_device *dev, const unsigned char *address)
{
	struct openib_net *net = netdev_priv(dev);
	struct openib_host *host = READ_ONCE(net->device->host);

	return host ? openib_listen(host, net->index, address) : -ENODEV;
}

static int ignore(struct net_device *dev, const unsigned char *address)
{
	struct openib_net *net = netdev_priv(dev);
	struct openib_host *host = READ_ONCE(net->device->host);

	if (host)
		openib_ignore(host, net->index, address);
	return 0;
}

/* The address lock is held. */
static void set_rx_mode(struct net_device *dev)
{
	struct openib_net *net = netdev_priv(dev);

	if (net->device->host)
		__dev_mc_sync(dev, listen, ignore);
}

static void tx_timeout(struct net_device *dev, unsigned int queue)
{
	struct openib_net *net = netdev_priv(dev);

	netdev_warn(dev, "nothing was sent for %u s\n", dev->watchdog_timeo / HZ);
	openib_os_wake(net->device);
}

static const struct net_device_ops net_ops = {
	.ndo_open = open,
	.ndo_stop = stop,
	.ndo_start_xmit = start_xmit,
	.ndo_set_rx_mode = set_rx_mode,
	.ndo_get_stats64 = dev_get_tstats64,
	.ndo_tx_timeout = tx_timeout,
};

/* ---- ethtool ---- */

static void get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	struct openib_net *net = netdev_priv(dev);
	const u16 *firmware = net->device->identity.firmware;

	strscpy(info->driver, OPENIB_NAME, sizeof(info->driver));
	strscpy(info->version, OPENIB_VERSION, sizeof(info->version));
	strscpy(info->bus_info, pci_name(net->device->pdev), sizeof(info->bus_info));
	snprintf(info->fw_version, sizeof(info->fw_version), "%u.%u.%u", firmware[0], firmware[1], firmware[2]);
}

static int get_sset_count(struct net_device *dev, int set)
{
	u32 count = 0;

	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;
	while (openib_counter_name(count))
		count++;
	return count;
}

static void get_strings(struct net_device *dev, u32 set, u8 *names)
{
	const char *name;
	u32 number;

	for (number = 0; set == ETH_SS_STATS && (name = openib_counter_name(number)); number++)
		strscpy(names + number * ETH_GSTRING_LEN, name, ETH_GSTRING_LEN);
}

static void get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *values)
{
	struct openib_net *net = netdev_priv(dev);

	if (net->device->host)
		openib_counters(net->device->host, net->index, values, stats->n_stats);
}

static const struct ethtool_ops ethtool_ops = {
	.get_drvinfo = get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_sset_count = get_sset_count,
	.get_strings = get_strings,
	.get_ethtool_stats = get_ethtool_stats,
};

/* ---- mode, as ib_ipoib has it ---- */

static ssize_t mode_show(struct device *dev, struct device_attribute *attr, char *to)
{
	struct openib_net *net = netdev_priv(to_net_dev(dev));

	return sysfs_emit(to, "%s\n", net->connected ? "connected" : "datagram");
}

static ssize_t mode_store(struct device *dev, struct device_attribute *attr, const char *from, size_t len)
{
	struct openib_net *net = netdev_priv(to_net_dev(dev));
	bool connected = sysfs_streq(from, "connected");
	ssize_t result = len;

	if (!connected && !sysfs_streq(from, "datagram"))
		return -EINVAL;
	/* Whoever unregisters the interface holds it, and waits for us. */
	if (!rtnl_trylock())
		return restart_syscall();
	if (net->device->host && openib_set_connected(net->device->host, net->index, connected))
		result = -EOPNOTSUPP;
	else
		net->connected = connected;
	rtnl_unlock();
	return result;
}

static DEVICE_ATTR_RW(mode);

static struct attribute *attributes[] = { &dev_attr_mode.attr, NULL };
static const struct attribute_group attribute_group = { .attrs = attributes };

/* ---- making and ending ---- */

static void setup(struct net_device *dev)
{
	dev->netdev_ops = &net_ops;
	dev->ethtool_ops = &ethtool_ops;
	dev->header_ops = &header_ops;
	dev->type = ARPHRD_INFINIBAND;
	dev->addr_len = 20;
	dev->hard_header_len = sizeof(struct header);
	dev->flags = IFF_BROADCAST | IFF_MULTICAST;
	dev->features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_HIGHDMA | NETIF_F_VLAN_CHALLENGED;
	dev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM;
	dev->watchdog_timeo = 10 * HZ;
	dev->tx_queue_len = 1000;
	dev->mtu = FIRST_MTU;
	dev->min_mtu = SMALLEST_MTU;
	dev->max_mtu = FIRST_MTU;
	netif_keep_dst(dev);
	/* The host's lock may be held where netpoll sends. */
	dev->priv_flags |= IFF_DISABLE_NETPOLL;
}

/* Makes one interface, which the library and the kernel are yet to be told of. */
int openib_nets_make_one(struct openib_device *device, u8 port, u16 p_key)
{
	struct net_device *dev;
	struct openib_net *net;

	if (device->net_count >= OPENIB_NETS)
		return -E2BIG;
	dev = alloc_netdev(sizeof(*net), "ib%d", NET_NAME_ENUM, setup);
	if (!dev)
		return -ENOMEM;
	dev->tstats = netdev_alloc_pcpu_stats(struct pcpu_sw_netstats);
	if (!dev->tstats) {
		free_netdev(dev);
		return -ENOMEM;
	}
	/* Sums that the HCA does not make are made while copying: offered either way. */
	if (device->identity.checksums) {
		dev->features |= NETIF_F_RXCSUM;
		dev->hw_features |= NETIF_F_RXCSUM;
	}
	SET_NETDEV_DEV(dev, &device->pdev->dev);
	dev->sysfs_groups[0] = &attribute_group;
	dev->dev_id = port - 1;
	dev->dev_port = port - 1;
	net = netdev_priv(dev);
	net->device = device;
	net->dev = dev;
	net->index = device->net_count;
	net->port = port;
	net->p_key = p_key;
	device->nets[device->net_count++] = dev;
	return 0;
}

/* What the library says of an interface becomes what the kernel shows. RTNL is held. */
static void apply(struct net_device *dev)
{
	struct openib_net *net = netdev_priv(dev);
	struct openib_interface_state state;

	if (!net->device->host || !openib_look(net->device->host, net->index, &state))
		return;
	if (memcmp(dev->dev_addr, state.address, dev->addr_len)) {
		__dev_addr_set(dev, state.address, dev->addr_len);
		memcpy(dev->broadcast, state.broadcast, dev->addr_len);
		if (dev->reg_state == NETREG_REGISTERED)
			call_netdevice_notifiers(NETDEV_CHANGEADDR, dev);
	}
	if (state.up && dev->max_mtu != state.mtu) {
		bool largest = dev->mtu == dev->max_mtu;

		dev->max_mtu = state.mtu;
		if (largest || dev->mtu > state.mtu)
			dev_set_mtu(dev, state.mtu);
	}
	if (state.up && netif_running(dev))
		netif_carrier_on(dev);
	else
		netif_carrier_off(dev);
}

void openib_nets_apply(struct openib_device *device)
{
	unsigned int index;

	rtnl_lock();
	for (index = 0; index < device->net_count; index++)
		apply(device->nets[index]);
	rtnl_unlock();
}

/* From now on the kernel's wishes go to `host`; those that it had before are repeated. */
void openib_nets_publish(struct openib_device *device, struct openib_host *host)
{
	unsigned int index;

	rtnl_lock();
	WRITE_ONCE(device->host, host);
	for (index = 0; index < device->net_count; index++) {
		struct net_device *dev = device->nets[index];

		apply(dev);
		if (((struct openib_net *)netdev_priv(dev))->connected)
			openib_set_connected(host, index, true);
		if (!netif_running(dev))
			continue;
		netif_addr_lock_bh(dev);
		set_rx_mode(dev);
		netif_addr_unlock_bh(dev);
		openib_set_up(host, index, true);
		netif_tx_wake_all_queues(dev);
	}
	rtnl_unlock();
}

/* From now on nobody here uses the host any more. */
struct openib_host *openib_nets_take_back(struct openib_device *device)
{
	struct openib_host *host;
	unsigned int index;

	rtnl_lock();
	host = device->host;
	for (index = 0; index < device->net_count; index++)
		netif_carrier_off(device->nets[index]);
	/* Locks are taken one by one: of each interface, then of nothing. */
	WRITE_ONCE(device->host, NULL);
	for (index = 0; index < device->net_count; index++) {
		struct net_device *dev = device->nets[index];

		/* One that the kernel never took has nothing to take back, and no such lock. */
		if (dev->reg_state == NETREG_UNINITIALIZED)
			continue;
		netif_tx_disable(dev);
		netif_addr_lock_bh(dev);
		__dev_mc_unsync(dev, NULL);
		netif_addr_unlock_bh(dev);
	}
	rtnl_unlock();
	return host;
}

int openib_nets_register(struct openib_device *device)
{
	unsigned int index;
	int error;

	for (index = 0; index < device->net_count; index++) {
		struct net_device *dev = device->nets[index];
		struct openib_net *net = netdev_priv(dev);

		/* A further partition is named after the interface of its port. */
		if (index > 0 && net->p_key != 0xffff) {
			unsigned int parent;

			for (parent = 0; parent < index; parent++) {
				struct openib_net *other = netdev_priv(device->nets[parent]);

				if (other->port == net->port) {
					/* One that is too long keeps the kernel's choice. */
					if (snprintf(dev->name, IFNAMSIZ, "%s.%04x", device->nets[parent]->name,
						     net->p_key) >= IFNAMSIZ)
						strscpy(dev->name, "ib%d", IFNAMSIZ);
					break;
				}
			}
		}
		error = register_netdev(dev);
		if (error)
			return error;
	}
	return 0;
}

void openib_nets_unregister(struct openib_device *device)
{
	unsigned int index;

	for (index = device->net_count; index-- > 0;)
		if (device->nets[index]->reg_state == NETREG_REGISTERED)
			unregister_netdev(device->nets[index]);
}

void openib_nets_free(struct openib_device *device)
{
	while (device->net_count > 0) {
		struct net_device *dev = device->nets[--device->net_count];

		free_percpu(dev->tstats);
		free_netdev(dev);
	}
}
