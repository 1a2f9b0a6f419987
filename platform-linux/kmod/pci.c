// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The PCI driver: finds an InfiniHost, opens its host, and drives it. What is due is done by polling (NAPI), what blocks
 * by a work queue; a timer polls when the library has asked for it.
 */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/utsname.h>

#include "kernel.h"

static bool msi_x = true;
module_param(msi_x, bool, 0444);
MODULE_PARM_DESC(msi_x, "ask for MSI-X (default: yes); the pin if there are no messages");

static bool debug;
module_param(debug, bool, 0444);
MODULE_PARM_DESC(debug, "log what helps to find an error (default: no)");

static ushort send_frames = 256;
module_param(send_frames, ushort, 0444);
MODULE_PARM_DESC(send_frames, "datagrams of an interface on their way out (2 to 32768, default: 256)");

static ushort recv_frames = 512;
module_param(recv_frames, ushort, 0444);
MODULE_PARM_DESC(recv_frames, "datagrams of an interface that it has room to receive (1 to 32768, default: 512)");

static ushort p_keys[OPENIB_NETS];
static unsigned int p_key_count;
module_param_array(p_keys, ushort, &p_key_count, 0444);
MODULE_PARM_DESC(p_keys, "partitions beside the default one, each an interface on every port (0x8001,...)");

static bool connected = true;
module_param(connected, bool, 0444);
MODULE_PARM_DESC(connected,
		 "take connections of peers, and allow connected mode (default: yes); 3 MiB of memory for each interface");

/* A restart that fails is tried again, so often, a second apart. */
#define RESTARTS 15

/* ---- polling ---- */

static int poll(struct napi_struct *napi, int budget)
{
	struct openib_device *device = container_of(napi, struct openib_device, napi);
	struct openib_poll_result result = {};
	struct sk_buff *skb;
	openib_outcome outcome;
	u64 now;

	outcome = openib_poll(device->host, budget, &result);
	while ((skb = __skb_dequeue(&device->received)))
		napi_gro_receive(napi, skb);
	openib_nets_wake(device);
	if (outcome != OPENIB_OUTCOME_OK) {
		if (!device->failed && !READ_ONCE(device->removing))
			queue_work(device->queue, &device->restart);
		device->failed = true;
		napi_complete(napi);
		return 0;
	}
	if (result.changed)
		queue_work(device->queue, &device->changes);
	if (result.jobs)
		queue_work(device->queue, &device->jobs);
	/* Read once: it may pass the instant between two looks. */
	now = ktime_get_ns();
	if (result.more || result.next <= now)
		return budget;
	if (result.next != U64_MAX)
		mod_timer(&device->timer, jiffies + nsecs_to_jiffies(result.next - now) + 1);
	napi_complete_done(napi, result.received);
	return min_t(int, result.received, budget - 1);
}

static void timer(struct timer_list *timer)
{
	struct openib_device *device = timer_container_of(device, timer, timer);

	napi_schedule(&device->napi);
}

/* ---- work ---- */

static void jobs(struct work_struct *work)
{
	struct openib_device *device = container_of(work, struct openib_device, jobs);

	while (openib_run_job(device->host))
		cond_resched();
}

static void changes(struct work_struct *work)
{
	openib_nets_apply(container_of(work, struct openib_device, changes));
}

static void restart(struct work_struct *work)
{
	struct openib_device *device = container_of(work, struct openib_device, restart);
	int tries, error = -EIO;

	dev_err(&device->pdev->dev, "the HCA has failed: it is restarted\n");
	openib_host_down(device);
	for (tries = 0; error && tries < RESTARTS && !READ_ONCE(device->removing); tries++) {
		if (tries)
			msleep(1000);
		/*
		 * It may have forgotten where it is; restoring a state uses it up. One that does not answer has none to be saved,
		 * and what was saved is kept for when it does.
		 */
		if (!pci_device_is_present(device->pdev))
			continue;
		pci_restore_state(device->pdev);
		pci_save_state(device->pdev);
		error = openib_host_up(device);
	}
	if (error)
		dev_err(&device->pdev->dev, "the HCA does not come back: %d\n", error);
	else
		dev_info(&device->pdev->dev, "the HCA works again\n");
}

/* ---- the host ---- */

static int add_nets(struct openib_device *device, struct openib_host *host)
{
	unsigned int index;

	for (index = 0; index < device->net_count; index++) {
		struct openib_net *net = netdev_priv(device->nets[index]);
		openib_outcome outcome = openib_add(host, net, net->port, net->p_key);

		if (outcome != OPENIB_OUTCOME_OK)
			return outcome;
	}
	return 0;
}

/* The first time, when it is known how many ports there are. */
static int make_nets(struct openib_device *device)
{
	unsigned int port, key;
	int error;

	for (port = 1; port <= device->identity.ports; port++) {
		error = openib_nets_make_one(device, port, 0xffff);
		if (error)
			return error;
	}
	for (key = 0; key < p_key_count; key++) {
		for (port = 1; port <= device->identity.ports; port++) {
			error = openib_nets_make_one(device, port, p_keys[key] | 0x8000);
			if (error)
				return error;
		}
	}
	return 0;
}

int openib_host_up(struct openib_device *device)
{
	char description[64];
	struct openib_config config = {
		.description = description,
		.messages = msi_x,
		.debug = debug,
		.send_frames = send_frames,
		.recv_frames = recv_frames,
		.connected = connected,
	};
	struct openib_host *host;
	int error;

	snprintf(description, sizeof(description), "%s " OPENIB_NAME, init_utsname()->nodename);
	error = openib_open(device, &config, &host);
	if (error)
		return error;
	openib_identify(host, &device->identity);
	if (device->net_count == 0)
		error = make_nets(device);
	if (!error)
		error = add_nets(device, host);
	if (!error)
		error = openib_start(host);
	if (error) {
		openib_close(host);
		return error;
	}
	device->failed = false;
	openib_nets_publish(device, host);
	napi_enable(&device->napi);
	openib_os_wake(device);
	return 0;
}

/* So that groups are left in order; a subnet manager that does not answer is not waited for. */
static void wait_until_idle(struct openib_device *device)
{
	struct openib_interface_state state;
	unsigned int index, tries;

	for (index = 0; index < device->net_count; index++)
		for (tries = 0; tries < 50; tries++) {
			if (!openib_look(device->host, index, &state) || state.idle)
				break;
			msleep(10);
		}
}

void openib_host_down(struct openib_device *device)
{
	struct openib_host *host;

	if (!device->host)
		return;
	/* Polling uses the host without asking, until it is ended. */
	napi_disable(&device->napi);
	timer_delete_sync(&device->timer);
	cancel_work_sync(&device->jobs);
	host = openib_nets_take_back(device);
	__skb_queue_purge(&device->received);
	openib_close(host);
}

/* ---- the driver ---- */

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct openib_device *device;
	int error;

	device = kzalloc(sizeof(*device), GFP_KERNEL);
	if (!device)
		return -ENOMEM;
	device->pdev = pdev;
	pci_set_drvdata(pdev, device);
	__skb_queue_head_init(&device->received);
	skb_queue_head_init(&device->too_long);
	INIT_WORK(&device->tell, openib_nets_tell);
	timer_setup(&device->timer, timer, 0);
	INIT_WORK(&device->jobs, jobs);
	INIT_WORK(&device->changes, changes);
	INIT_WORK(&device->restart, restart);
	error = -ENOMEM;
	device->queue = alloc_workqueue(OPENIB_NAME "-%s", WQ_MEM_RECLAIM | WQ_UNBOUND, 0, pci_name(pdev));
	if (!device->queue)
		goto no_queue;
	device->poller = alloc_netdev_dummy(0);
	if (!device->poller)
		goto no_poller;
	netif_napi_add(device->poller, &device->napi, poll);

	error = pci_enable_device(pdev);
	if (error)
		goto not_enabled;
	error = pci_request_regions(pdev, OPENIB_NAME);
	if (error)
		goto no_regions;
	error = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (error)
		error = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(32));
	if (error)
		goto no_host;
	pci_set_master(pdev);
	pci_save_state(pdev);
	error = openib_host_up(device);
	if (error)
		goto no_host;
	error = openib_nets_register(device);
	if (error)
		goto not_registered;
	dev_info(&pdev->dev, "HCA %016llx, firmware %u.%u.%u, %u ports, %s\n", device->identity.node_guid,
		 device->identity.firmware[0], device->identity.firmware[1], device->identity.firmware[2],
		 device->identity.ports, device->identity.messages ? "MSI-X" : "INTx");
	return 0;

not_registered:
	WRITE_ONCE(device->removing, true);
	openib_nets_unregister(device);
	cancel_work_sync(&device->tell);
	skb_queue_purge(&device->too_long);
	/* A poll that had not seen it is over now. */
	synchronize_net();
	cancel_work_sync(&device->restart);
	openib_host_down(device);
no_host:
	cancel_work_sync(&device->changes);
	openib_nets_free(device);
	pci_clear_master(pdev);
	pci_release_regions(pdev);
no_regions:
	pci_disable_device(pdev);
not_enabled:
	netif_napi_del(&device->napi);
	free_netdev_dummy(device->poller);
no_poller:
	destroy_workqueue(device->queue);
no_queue:
	kfree(device);
	return error;
}

static void remove(struct pci_dev *pdev)
{
	struct openib_device *device = pci_get_drvdata(pdev);

	WRITE_ONCE(device->removing, true);
	cancel_work_sync(&device->restart);
	openib_nets_unregister(device);
	cancel_work_sync(&device->tell);
	skb_queue_purge(&device->too_long);
	/* A poll that had not seen it is over now. */
	synchronize_net();
	cancel_work_sync(&device->restart);
	if (device->host)
		wait_until_idle(device);
	openib_host_down(device);
	cancel_work_sync(&device->restart);
	cancel_work_sync(&device->changes);
	openib_nets_free(device);
	pci_clear_master(pdev);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
	netif_napi_del(&device->napi);
	free_netdev_dummy(device->poller);
	destroy_workqueue(device->queue);
	kfree(device);
}

/* The machine ends: the HCA is quiet, and nothing is freed, since the kernel may yet remove the device. */
static void shutdown(struct pci_dev *pdev)
{
	struct openib_device *device = pci_get_drvdata(pdev);

	WRITE_ONCE(device->removing, true);
	cancel_work_sync(&device->restart);
	openib_host_down(device);
	pci_clear_master(pdev);
}

#define MELLANOX 0x15b3
#define TOPSPIN 0x1867

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(MELLANOX, 0x5a44) }, /* MT23108 */
	{ PCI_DEVICE(MELLANOX, 0x6278) }, /* MT25208, compatible to it */
	{ PCI_DEVICE(MELLANOX, 0x6282) }, /* MT25208 */
	{ PCI_DEVICE(MELLANOX, 0x6274) }, /* MT25204 */
	{ PCI_DEVICE(MELLANOX, 0x5e8c) }, /* MT25204, older */
	{ PCI_DEVICE(TOPSPIN, 0x5a44) },
	{ PCI_DEVICE(TOPSPIN, 0x6278) },
	{ PCI_DEVICE(TOPSPIN, 0x6282) },
	{ PCI_DEVICE(TOPSPIN, 0x6274) },
	{ PCI_DEVICE(TOPSPIN, 0x5e8c) },
	{},
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver infinihost_driver = {
	.name = OPENIB_NAME,
	.id_table = ids,
	.probe = probe,
	.remove = remove,
	.shutdown = shutdown,
};
module_pci_driver(infinihost_driver);

MODULE_DESCRIPTION("IP over InfiniBand on Mellanox InfiniHost HCAs");
MODULE_VERSION(OPENIB_VERSION);
MODULE_LICENSE("Dual MIT/GPL");
