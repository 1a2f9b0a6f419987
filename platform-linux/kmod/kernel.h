/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What the files of the module share, and what differs between kernels. */
#ifndef OPENIB_KERNEL_H
#define OPENIB_KERNEL_H

#include <linux/interrupt.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/timer.h>
#include <linux/version.h>
#include <linux/workqueue.h>

#include "../include/openib.h"

#define OPENIB_NAME "openib"
#define OPENIB_VERSION "0.1.0"

/* As many as the library has: vectors of an HCA, interfaces of a host. */
#define OPENIB_VECTORS 4
#define OPENIB_NETS 8

struct openib_device {
	struct pci_dev *pdev;
	/* Null while the HCA is down. Published and taken back under RTNL and the address lock of every interface. */
	struct openib_host *host;
	struct openib_identity identity;
	/* Polling is about the HCA and not about one interface: it has a device of its own. */
	struct net_device *poller;
	struct napi_struct napi;
	struct sk_buff_head received;
	/* What was too long for a peer: whoever sent it is told, where that is allowed. */
	struct sk_buff_head too_long;
	struct work_struct tell;
	struct timer_list timer;
	struct workqueue_struct *queue;
	struct work_struct jobs;
	struct work_struct changes;
	struct work_struct restart;
	bool removing;
	bool failed;
	struct openib_vector *vectors[OPENIB_VECTORS];
	char vector_names[OPENIB_VECTORS][32];
	unsigned int net_count;
	struct net_device *nets[OPENIB_NETS];
};

/* The private part of an interface. */
struct openib_net {
	struct openib_device *device;
	struct net_device *dev;
	u32 index;
	u8 port;
	u16 p_key;
	/* What the administrator wants: repeated when the HCA was restarted. RTNL is held. */
	bool connected;
};

/* pci.c: the host of a device goes up, or down. Both block. */
int openib_host_up(struct openib_device *device);
void openib_host_down(struct openib_device *device);

/* net.c */
int openib_nets_make_one(struct openib_device *device, u8 port, u16 p_key);
int openib_nets_register(struct openib_device *device);
void openib_nets_unregister(struct openib_device *device);
void openib_nets_free(struct openib_device *device);
void openib_nets_publish(struct openib_device *device, struct openib_host *host);
struct openib_host *openib_nets_take_back(struct openib_device *device);
void openib_nets_apply(struct openib_device *device);
void openib_nets_wake(struct openib_device *device);
void openib_nets_tell(struct work_struct *work);

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 16, 0)
#define timer_container_of from_timer
#endif
#ifndef PCI_IRQ_INTX
#define PCI_IRQ_INTX PCI_IRQ_LEGACY
#endif
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 10, 0)
/* A device that nothing sees, for polling alone. */
static inline struct net_device *alloc_netdev_dummy(int size)
{
	struct net_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);

	if (dev)
		init_dummy_netdev(dev);
	return dev;
}
static inline void free_netdev_dummy(struct net_device *dev)
{
	kfree(dev);
}
#else
#define free_netdev_dummy(dev) free_netdev(dev)
#endif

#endif
