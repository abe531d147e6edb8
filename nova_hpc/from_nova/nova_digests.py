# SPDX-License-Identifier: Apache-2.0
"""Digests of Nova's functions as they were read; ``tools/nova_digests.py`` writes this file.

Each is the SHA-256 that :func:`nova_hpc.from_nova.nova_sources.digest_function` makes, by release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DIGESTS: Final[Mapping[str, Mapping[int, str]]] = {
    "nova.api.validation.extra_specs.base:ExtraSpecValidator.validate": {
        32: "bd3031dbc63f2b479abf50a1f3df4f26ece8c965a031ac4c62fa32084c0f9410",
        33: "bd3031dbc63f2b479abf50a1f3df4f26ece8c965a031ac4c62fa32084c0f9410",
        34: "bd3031dbc63f2b479abf50a1f3df4f26ece8c965a031ac4c62fa32084c0f9410",
    },
    "nova.compute.claims:MoveClaim.__init__": {
        32: "5ecc84bd2368016a10a98b7042021fe64f74bacc9d7ce7f9b55a148dee663b6d",
        33: "5ecc84bd2368016a10a98b7042021fe64f74bacc9d7ce7f9b55a148dee663b6d",
        34: "5ecc84bd2368016a10a98b7042021fe64f74bacc9d7ce7f9b55a148dee663b6d",
    },
    "nova.compute.manager:ComputeManager._attach_interface": {
        32: "b2e351df3afa780049375cc8aef1dd902543af3e23aa2ac14eeb903d22357f34",
        33: "b2e351df3afa780049375cc8aef1dd902543af3e23aa2ac14eeb903d22357f34",
        34: "b2e351df3afa780049375cc8aef1dd902543af3e23aa2ac14eeb903d22357f34",
    },
    "nova.compute.manager:ComputeManager._build_and_run_instance": {
        32: "08f90f960bdbb02c19a680a9ecac051cdef16dde71e1bff2c61f8f08e073ad11",
        33: "aaa7bd52a63c5730be5a334ef6727763901bc0d616782e8fae7ae2ada99eda5c",
        34: "aaa7bd52a63c5730be5a334ef6727763901bc0d616782e8fae7ae2ada99eda5c",
    },
    "nova.compute.manager:ComputeManager._do_build_and_run_instance": {
        32: "7ac883d033b751af11306815fbac90b45e9762c71d70292b552523cad8c8908e",
        33: "7ac883d033b751af11306815fbac90b45e9762c71d70292b552523cad8c8908e",
        34: "7ac883d033b751af11306815fbac90b45e9762c71d70292b552523cad8c8908e",
    },
    "nova.compute.manager:ComputeManager.backup_instance": {
        32: "f3129e7543e337f04b5365afbc09cfe8896aa53d9331fdf522776287957f63f0",
        33: "f3129e7543e337f04b5365afbc09cfe8896aa53d9331fdf522776287957f63f0",
        34: "f3129e7543e337f04b5365afbc09cfe8896aa53d9331fdf522776287957f63f0",
    },
    "nova.compute.manager:ComputeManager.reboot_instance": {
        32: "234eb032f1235465f683ff78053c49cf19bbf7d8762f8432adb2d5894a23133c",
        33: "8789382f6290dc8b13066a05db8110b83737b62e26f0cc14eb3ab8b44214ffab",
        34: "8789382f6290dc8b13066a05db8110b83737b62e26f0cc14eb3ab8b44214ffab",
    },
    "nova.compute.manager:ComputeManager.rebuild_instance": {
        32: "813f019ed32684d338c137c4dad271a7bcb14952329674c568e3630854208314",
        33: "813f019ed32684d338c137c4dad271a7bcb14952329674c568e3630854208314",
        34: "813f019ed32684d338c137c4dad271a7bcb14952329674c568e3630854208314",
    },
    "nova.compute.manager:ComputeManager.rescue_instance": {
        32: "0062473b03ba70e91e59e23b299ac37d3b476c81348bfc0cc2cd22788f904f40",
        33: "0062473b03ba70e91e59e23b299ac37d3b476c81348bfc0cc2cd22788f904f40",
        34: "92364e7424306e4625390388a42a5b6989d74986cd6941990e0e9e508c7c7454",
    },
    "nova.compute.manager:ComputeManager.revert_resize": {
        32: "7c4e71fa949423343c4939747c3b1dff5dcf600c532a49afdfc16771d1642b67",
        33: "7c4e71fa949423343c4939747c3b1dff5dcf600c532a49afdfc16771d1642b67",
        34: "b5ae8833c13bb554b79226556c48ce256ebc0ceb3c79585439f4d5e6204f8c4a",
    },
    "nova.compute.manager:ComputeManager.snapshot_instance": {
        32: "f872e3fb9fce1bc04f04ffb3cc9385274e8edfb2065895584fffe36401ab61b6",
        33: "e6c2918ffecaf77ea0196b4c666b0dddd3167081cfcb78d9bc3e4b2ae61e1ca3",
        34: "55a6bf2fa1b01c0bdaced971c0d1f5f11b5c6992b6dc03f371e4df6589225f4f",
    },
    "nova.compute.manager:ComputeManager.unrescue_instance": {
        32: "d8f77ea8459bda3f86c69449cdcec10b86747776f709f87789090651943fd80d",
        33: "d8f77ea8459bda3f86c69449cdcec10b86747776f709f87789090651943fd80d",
        34: "d8f77ea8459bda3f86c69449cdcec10b86747776f709f87789090651943fd80d",
    },
    "nova.compute.pci_placement_translator:PciResourceProvider._get_allocations": {
        32: "f75a9c67c2dec3fbf9236e984ef400c9028eed8d26d8275495b77b6b811f6034",
        33: "493833e6fc17136c4df3f0174d995ca7c12915597eedc9b76eee068edf78ea40",
        34: "493833e6fc17136c4df3f0174d995ca7c12915597eedc9b76eee068edf78ea40",
    },
    "nova.compute.pci_placement_translator:PlacementView.update_allocations": {
        32: "25f8e0ce72417cf1b61e90831e02b73430ee4b99fbdc9bba31820c990e4ca529",
        33: "25f8e0ce72417cf1b61e90831e02b73430ee4b99fbdc9bba31820c990e4ca529",
        34: "25f8e0ce72417cf1b61e90831e02b73430ee4b99fbdc9bba31820c990e4ca529",
    },
    "nova.compute.pci_placement_translator:get_resource_class": {
        32: "35c7c605fe0c9581b8a1d9f45419fc2b7797a9d22abcb2dea00f963497d98d72",
        33: "94a6690777c95510ded43d582815d2dc7e88d58205565b1951598aa0eae39a72",
        34: "94a6690777c95510ded43d582815d2dc7e88d58205565b1951598aa0eae39a72",
    },
    "nova.compute.pci_placement_translator:get_traits": {
        32: "b36a9f25bee03caf074052cd8c62cff1ffb77ac794c0c0d12c1dd02a7894632e",
        33: "cfa11acafaa88cfcb4d7bb9c20a4f5b4d3abe34a54c5b11a36f1cbeaf228cc1a",
        34: "cfa11acafaa88cfcb4d7bb9c20a4f5b4d3abe34a54c5b11a36f1cbeaf228cc1a",
    },
    "nova.compute.pci_placement_translator:update_provider_tree_for_pci": {
        32: "37d4c099a217d8c304b1a43d2079eb434231a3eb6ef6f43611e8e2390b375fa4",
        33: "53e55f2e6ff76e5cfb56faabf2b1d32db185aa2d5c86aeb3a8a2828b6c8e37ce",
        34: "53e55f2e6ff76e5cfb56faabf2b1d32db185aa2d5c86aeb3a8a2828b6c8e37ce",
    },
    "nova.compute.resource_tracker:ResourceTracker._setup_pci_tracker": {
        32: "47c05de7e634f79f60941ef8670ff7691caf9259be496554c76bd2d3d60cd96f",
        33: "47c05de7e634f79f60941ef8670ff7691caf9259be496554c76bd2d3d60cd96f",
        34: "47c05de7e634f79f60941ef8670ff7691caf9259be496554c76bd2d3d60cd96f",
    },
    "nova.compute.resource_tracker:ResourceTracker._update_to_placement": {
        32: "4a742c3130e3b68289b48fa3edfa326b39e6e8b68ff0a4d0c52ce8454818dd1c",
        33: "4a742c3130e3b68289b48fa3edfa326b39e6e8b68ff0a4d0c52ce8454818dd1c",
        34: "45a584d22da1884b57b55b10a8120a5b9eaf20aa6fffec3bfc77c6eabd06bb43",
    },
    "nova.compute.resource_tracker:ResourceTracker._update_usage_from_instances": {
        32: "83e242c59d6c522ae32c0ded802c28dbb78daf1a0170186f5496c774f015dee3",
        33: "83e242c59d6c522ae32c0ded802c28dbb78daf1a0170186f5496c774f015dee3",
        34: "83e242c59d6c522ae32c0ded802c28dbb78daf1a0170186f5496c774f015dee3",
    },
    "nova.compute.resource_tracker:ResourceTracker.drop_move_claim": {
        32: "2ad402f0e19a6451dedf9a58c100a5d1feda35f9036d4a41921c5f95fc44f01d",
        33: "2ad402f0e19a6451dedf9a58c100a5d1feda35f9036d4a41921c5f95fc44f01d",
        34: "2ad402f0e19a6451dedf9a58c100a5d1feda35f9036d4a41921c5f95fc44f01d",
    },
    "nova.compute.resource_tracker:ResourceTracker.instance_claim": {
        32: "2a03cccda5f096a28543f6cdc7b3002bf8fbab24f74afb50bcd5347b02319beb",
        33: "2a03cccda5f096a28543f6cdc7b3002bf8fbab24f74afb50bcd5347b02319beb",
        34: "2a03cccda5f096a28543f6cdc7b3002bf8fbab24f74afb50bcd5347b02319beb",
    },
    "nova.compute.resource_tracker:ResourceTracker.rebuild_claim": {
        32: "2f4f729fd6ce55b3204958ddf77f4688b8bf7543866724a1cae46ddf3b394e67",
        33: "2f4f729fd6ce55b3204958ddf77f4688b8bf7543866724a1cae46ddf3b394e67",
        34: "2f4f729fd6ce55b3204958ddf77f4688b8bf7543866724a1cae46ddf3b394e67",
    },
    "nova.compute.resource_tracker:ResourceTracker.resize_claim": {
        32: "265cd333a866e517ffd72d6f0cedd89b76f78a95c3c1c56c24290a1f943fb46f",
        33: "265cd333a866e517ffd72d6f0cedd89b76f78a95c3c1c56c24290a1f943fb46f",
        34: "265cd333a866e517ffd72d6f0cedd89b76f78a95c3c1c56c24290a1f943fb46f",
    },
    "nova.filters:BaseFilter.filter_all": {
        32: "767218a8cc30cd2695f667ebcc5ea8a86ae8bd3f6e27c834dbc2bfa8b13a15da",
        33: "767218a8cc30cd2695f667ebcc5ea8a86ae8bd3f6e27c834dbc2bfa8b13a15da",
        34: "767218a8cc30cd2695f667ebcc5ea8a86ae8bd3f6e27c834dbc2bfa8b13a15da",
    },
    "nova.pci.stats:PciDeviceStats._apply_request": {
        32: "64db07e2936311cb2c7ef1429a1d777576144b88a515dd8f510c94dfbbc51ed0",
        33: "5948c209f94048f75f29ff032e838e5c16fedd111b7e580d38172066ae6a3707",
        34: "5948c209f94048f75f29ff032e838e5c16fedd111b7e580d38172066ae6a3707",
    },
    "nova.pci.stats:PciDeviceStats._filter_pools": {
        32: "358378ee25083e3fbd05709bab717bee168d792838a2aff8a844264f4eecc3e9",
        33: "67dae214b19ced56062819997f2fba22fca39c7e4722d7b4024c242f486744d5",
        34: "67dae214b19ced56062819997f2fba22fca39c7e4722d7b4024c242f486744d5",
    },
    "nova.pci.stats:PciDeviceStats._get_rp_uuids_for_request": {
        32: "3b313c8380f7c93e918a3cb99a36f9a2d3ddd6bd8177f2e20f8e004b5ae77a78",
        33: "b40dace38849253335713b23fe5467b33bb1a223f9da2523ff4190e506489665",
        34: "b40dace38849253335713b23fe5467b33bb1a223f9da2523ff4190e506489665",
    },
    "nova.pci.stats:PciDeviceStats.apply_requests": {
        32: "090c5aebfc62e0252fdc4acdf4c7e233550a837123b8cb4c737e2a6f13e0a1ed",
        33: "80cb3e62797242d9fa6c00d7468358841bac7aece8b54aec3c1f4e58355faee9",
        34: "80cb3e62797242d9fa6c00d7468358841bac7aece8b54aec3c1f4e58355faee9",
    },
    "nova.pci.stats:PciDeviceStats.consume_requests": {
        32: "261651098ce8648e03505f00597032c35fc585be538766d6aa045d7af7f8a5e7",
        33: "0bef51ed819579767b18b3861ec6e1135b2db31cf2b22e8f2771899c9c2efdee",
        34: "0bef51ed819579767b18b3861ec6e1135b2db31cf2b22e8f2771899c9c2efdee",
    },
    "nova.pci.stats:PciDeviceStats.support_requests": {
        32: "a060dc2ab99204dea687ebeaa38226fa76615552d8a6f073599fe53f520bb4d8",
        33: "a41565e6764a552bcb56682c617a3454a6fe2700b59e3e59aaef8d87c00137cd",
        34: "a41565e6764a552bcb56682c617a3454a6fe2700b59e3e59aaef8d87c00137cd",
    },
    "nova.scheduler.client.report:SchedulerReportClient.delete_allocation_for_instance": {
        32: "bd0bd4d14307b19646a0809bc41007578659df6a6e41c36067ffa0858a5a7ace",
        33: "bd0bd4d14307b19646a0809bc41007578659df6a6e41c36067ffa0858a5a7ace",
        34: "bd0bd4d14307b19646a0809bc41007578659df6a6e41c36067ffa0858a5a7ace",
    },
    "nova.scheduler.filters.numa_topology_filter:NUMATopologyFilter.host_passes": {
        32: "e46a19a5ab7a540e7cb11079cf20a5fe5286a7d9e5b6a9306e717c24077b1514",
        33: "e46a19a5ab7a540e7cb11079cf20a5fe5286a7d9e5b6a9306e717c24077b1514",
        34: "e46a19a5ab7a540e7cb11079cf20a5fe5286a7d9e5b6a9306e717c24077b1514",
    },
    "nova.scheduler.host_manager:HostManager.__init__": {
        32: "44feafea3c7b13261b9e3231076837eb112287c1a3425f4314d6d53ec969fbf6",
        33: "44feafea3c7b13261b9e3231076837eb112287c1a3425f4314d6d53ec969fbf6",
        34: "44feafea3c7b13261b9e3231076837eb112287c1a3425f4314d6d53ec969fbf6",
    },
    "nova.scheduler.host_manager:HostManager._get_instance_info": {
        32: "c3cea2332514d5cfe447899857ab8f89b935fb19d63157fc4b24e18b7f1f749f",
        33: "c3cea2332514d5cfe447899857ab8f89b935fb19d63157fc4b24e18b7f1f749f",
        34: "c3cea2332514d5cfe447899857ab8f89b935fb19d63157fc4b24e18b7f1f749f",
    },
    "nova.scheduler.host_manager:HostManager.get_filtered_hosts": {
        32: "72bc5c5f66f9aa2afe3db7e1a5e67c506948cbdc57633ea5560077067476aebc",
        33: "72bc5c5f66f9aa2afe3db7e1a5e67c506948cbdc57633ea5560077067476aebc",
        34: "72bc5c5f66f9aa2afe3db7e1a5e67c506948cbdc57633ea5560077067476aebc",
    },
    "nova.scheduler.host_manager:HostState.consume_from_request": {
        32: "fcd18b1eafa577245b25f7dcc9a7c71f62410116a709ee4a49d459885f480725",
        33: "fcd18b1eafa577245b25f7dcc9a7c71f62410116a709ee4a49d459885f480725",
        34: "fcd18b1eafa577245b25f7dcc9a7c71f62410116a709ee4a49d459885f480725",
    },
    "nova.scheduler.manager:SchedulerManager._get_alternate_hosts": {
        32: "ec2ead7c94e360cd28dbf8d83c8c1fa9f7bc7ed8f1fdfb6eafa0e9bace7f2aaf",
        33: "ec2ead7c94e360cd28dbf8d83c8c1fa9f7bc7ed8f1fdfb6eafa0e9bace7f2aaf",
        34: "ec2ead7c94e360cd28dbf8d83c8c1fa9f7bc7ed8f1fdfb6eafa0e9bace7f2aaf",
    },
    "nova.scheduler.manager:SchedulerManager._select_destinations": {
        32: "599939f423b3074b283e67031d4dd0c3d7f4559b90f0f23fbed4ec5876fb5d22",
        33: "599939f423b3074b283e67031d4dd0c3d7f4559b90f0f23fbed4ec5876fb5d22",
        34: "599939f423b3074b283e67031d4dd0c3d7f4559b90f0f23fbed4ec5876fb5d22",
    },
    "nova.scheduler.manager:SchedulerManager.select_destinations": {
        32: "959dcb4c88810b3ad974abf2c520c8f4a7663376df8fa413418f20fcfaea9bcc",
        33: "959dcb4c88810b3ad974abf2c520c8f4a7663376df8fa413418f20fcfaea9bcc",
        34: "959dcb4c88810b3ad974abf2c520c8f4a7663376df8fa413418f20fcfaea9bcc",
    },
    "nova.scheduler.utils:claim_resources": {
        32: "a8e85e3eb7a062343f1469fa6c6f23041d0b9668da6739c48e4ab507e407628f",
        33: "a8e85e3eb7a062343f1469fa6c6f23041d0b9668da6739c48e4ab507e407628f",
        34: "a8e85e3eb7a062343f1469fa6c6f23041d0b9668da6739c48e4ab507e407628f",
    },
    "nova.virt.driver:ComputeDriver.rebuild": {
        32: "52a3edf9db5d3dd5331f372ff42b99f3bda616b27caa2e27ac45bd4ccdc472f0",
        33: "52a3edf9db5d3dd5331f372ff42b99f3bda616b27caa2e27ac45bd4ccdc472f0",
        34: "52a3edf9db5d3dd5331f372ff42b99f3bda616b27caa2e27ac45bd4ccdc472f0",
    },
    "nova.virt.hardware:_numa_cells_support_network_metadata": {
        32: "f35aa0b4220d31c950c018fbc3f4ad63f9622515a871caa961d216809fc4b15a",
        33: "612c30363b17ed5b096f924448087823adf6b271ad1e92cf6ed4fc3c3e92a22f",
        34: "612c30363b17ed5b096f924448087823adf6b271ad1e92cf6ed4fc3c3e92a22f",
    },
    "nova.virt.hardware:_numa_fit_instance_cell": {
        32: "cb64c0540064b5520c36314e5aac34600ac7780b0580e62e314d4db37323dda7",
        33: "0d50e3d6f34f01db8b0e4002c0961ffaf1098ae3ca23582c0609fa61c5379507",
        34: "0d50e3d6f34f01db8b0e4002c0961ffaf1098ae3ca23582c0609fa61c5379507",
    },
    "nova.virt.hardware:_pack_instance_onto_cores": {
        32: "a281b02b42418e67a038611130ffbc6b632ca024ffe759bb37114e5ba8dc39a8",
        33: "2722d10b43b229bc49934e3262c9692a031f7b0ca1cc251ecb28492669ed19e0",
        34: "2722d10b43b229bc49934e3262c9692a031f7b0ca1cc251ecb28492669ed19e0",
    },
    "nova.virt.hardware:numa_fit_instance_to_host": {
        32: "77872a8a32f78bb273df574c3b699aea83cea3caccd5e801a75a1c8c9f6411af",
        33: "d47bf656a99581357f36d068cbb055d29ba3a40d4b823d2bf3ed425e264cf1b3",
        34: "d47bf656a99581357f36d068cbb055d29ba3a40d4b823d2bf3ed425e264cf1b3",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.__init__": {
        32: "2c01136c0b21ee266cf5b062ba529d2ccaa9fe85f47041a44d594da9606f88a4",
        33: "415d2e084539d97437f861eb9295b2c54fe277472b16998a095f1311ea664a96",
        34: "71affd0ce3ef7578aa5ecb17535db0fa05dbdf40189287bc1c68047bfd9343b2",
    },
    "nova.virt.libvirt.driver:LibvirtDriver._attach_pci_devices": {
        32: "da2be1b0fdb2bff18c578e1d960f2f52903bc1210cdbf19ad1645c5939b315a7",
        33: "da2be1b0fdb2bff18c578e1d960f2f52903bc1210cdbf19ad1645c5939b315a7",
        34: "da2be1b0fdb2bff18c578e1d960f2f52903bc1210cdbf19ad1645c5939b315a7",
    },
    "nova.virt.libvirt.driver:LibvirtDriver._detach_pci_devices": {
        32: "3917e67054ee4e8e635bdaba929e0f8c7528e0d1ba0238b0527dd38ee1e1aa7d",
        33: "3917e67054ee4e8e635bdaba929e0f8c7528e0d1ba0238b0527dd38ee1e1aa7d",
        34: "3917e67054ee4e8e635bdaba929e0f8c7528e0d1ba0238b0527dd38ee1e1aa7d",
    },
    "nova.virt.libvirt.driver:LibvirtDriver._get_guest_xml": {
        32: "5eadedbd2b87df0ccdec1b973d5150fe445f3390d15ee7607792af161876b0ef",
        33: "c4025dd273fbeed795c3dfc041cc06e5c1352f5add254dfbc4c4fd4976d59d39",
        34: "c4025dd273fbeed795c3dfc041cc06e5c1352f5add254dfbc4c4fd4976d59d39",
    },
    "nova.virt.libvirt.driver:LibvirtDriver._get_pci_passthrough_devices": {
        32: "9ad205542995690b9cc722acacde03b1ec9cb8cd374f61da6863db29a824a46c",
        33: "9ad205542995690b9cc722acacde03b1ec9cb8cd374f61da6863db29a824a46c",
        34: "c052ff80ed6be641fe1a420d258f5d8d0d8a539d6fa3f322d2587ee447e12b99",
    },
    "nova.virt.libvirt.driver:LibvirtDriver._hard_reboot": {
        32: "ede66f71462c478fac12924b055b27e0a9281a789140bcebe1373cd51f620a5d",
        33: "432c7c20dd305162bab34cd313ad3377b446a6e53b95260ce0371f8a7525b43d",
        34: "4adcc867b306ab81b3521f0f186673553c3e268d6e5be5a868ca79c7b4e4bb3b",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.attach_interface": {
        32: "900e796082f727290d0f57c0a095915feb71dc30e7202fa12c6fd100c6d07d10",
        33: "900e796082f727290d0f57c0a095915feb71dc30e7202fa12c6fd100c6d07d10",
        34: "ad651a8c32501085837715966dad2e86a7ff75ef8b446d9001c20e58113fa92b",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.check_can_live_migrate_source": {
        32: "8b882aeadee79cf4472192a9f549635bd23a6fff30569cf38fc184092132c2ad",
        33: "c781627c003937a8de9e2fcd4de7d415ec26c98c64a558d438351a5eb016cff6",
        34: "c781627c003937a8de9e2fcd4de7d415ec26c98c64a558d438351a5eb016cff6",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.check_source_migrate_data_at_dest": {
        32: "046ac27e924560da00b85c164939a335927cee7d20ad25b04600c23ce2e73bc1",
        33: "9b8e85fd8e93341d7fb93381d2fe139a5377ca1c8a4ce2db6d3629e6d17c0cfb",
        34: "9b8e85fd8e93341d7fb93381d2fe139a5377ca1c8a4ce2db6d3629e6d17c0cfb",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.destroy": {
        32: "7acc20f5539bc59d7a94cb2acf89c610a8e7ce8e5f3d2699638ccffec6a97949",
        33: "7acc20f5539bc59d7a94cb2acf89c610a8e7ce8e5f3d2699638ccffec6a97949",
        34: "7acc20f5539bc59d7a94cb2acf89c610a8e7ce8e5f3d2699638ccffec6a97949",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.emit_event": {
        32: "40e621d253121776a23ff826ebf9aae9a8e609c40f43b7c433a5d79b859fd2d6",
        33: "40e621d253121776a23ff826ebf9aae9a8e609c40f43b7c433a5d79b859fd2d6",
        34: "40e621d253121776a23ff826ebf9aae9a8e609c40f43b7c433a5d79b859fd2d6",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.finish_migration": {
        32: "fe73fff00a8c20f699b75eb6f5afe2b4814388850287919ff27e8c33e5beec43",
        33: "670666fdf1bde302e20a9bdfae58703117508da4b18eb25cf50ca7bf4829795b",
        34: "7f5d7934fb88f56721469106ce5d4803816d1a3a4191b43e764fec30617d5be8",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.finish_revert_migration": {
        32: "6b72650f18ccdf8e193302c87b31022c44dcc7cbd904689453b57b600cd4ab4c",
        33: "8a67dce01686bb082690c16812ca6d49b69fc2ee72a81337e1fa7743a7c7da66",
        34: "ec91f1f5d895eed156ed45b3489ccc087eda5904a0d32c5519434fcc5e92d1aa",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.get_available_resource": {
        32: "788914613ac033a379872fc3814e747242d994ee9804b26205f147cf31325c5c",
        33: "788914613ac033a379872fc3814e747242d994ee9804b26205f147cf31325c5c",
        34: "788914613ac033a379872fc3814e747242d994ee9804b26205f147cf31325c5c",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.init_host": {
        32: "88d6aa5bb52dbf62ae3bfd54a143226451e6aa77fb938a77b5e229a9862c334d",
        33: "90435ca69e0601d8523baf4730e728b5206ea993385fa3c33582657faf1bdee9",
        34: "153a99de648f278901a30abb6c93787ec9e84c202d85b32875d72588be70ee44",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.migrate_disk_and_power_off": {
        32: "56173c4b5771b6bb29e9168c9bcbb21733a1aefdb57d804955dd7d7c222644e7",
        33: "56173c4b5771b6bb29e9168c9bcbb21733a1aefdb57d804955dd7d7c222644e7",
        34: "56173c4b5771b6bb29e9168c9bcbb21733a1aefdb57d804955dd7d7c222644e7",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.rescue": {
        32: "68eb061729d98b9538f6e8a96d7b4e809e44b34bc1327704d881c3383b8259d7",
        33: "3b31a47821c34560b9a58085e931ea43d7a004eb5b2f30ee438a6234714fc401",
        34: "3b31a47821c34560b9a58085e931ea43d7a004eb5b2f30ee438a6234714fc401",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.resume": {
        32: "8821189261f92b7ebc6f367d2c3ee72a5571fa3d00a4b0681c1789c51647bd17",
        33: "8821189261f92b7ebc6f367d2c3ee72a5571fa3d00a4b0681c1789c51647bd17",
        34: "8821189261f92b7ebc6f367d2c3ee72a5571fa3d00a4b0681c1789c51647bd17",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.resume_state_on_host_boot": {
        32: "d2f75c7b22c5dc2a229ddc1b81787ff33053ae9eade50402c2768b435335134c",
        33: "d2f75c7b22c5dc2a229ddc1b81787ff33053ae9eade50402c2768b435335134c",
        34: "d2f75c7b22c5dc2a229ddc1b81787ff33053ae9eade50402c2768b435335134c",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.spawn": {
        32: "946bb4405b5c3be759e30252365f9949f8f2e566c1ee1adf6f49500c71a34e1c",
        33: "f3ebe43dcfb0d7e5d4fc183053341091f73d2ed49862b663e560e41ca012d4ec",
        34: "7bedb8d51324910e2662800ae4be4a72f9df165edd230aef06faa16013244871",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.suspend": {
        32: "556d82c0f2ae62b8907c05b3722be6e2052572e4d93ed0dcaa2895aa1aa399f5",
        33: "556d82c0f2ae62b8907c05b3722be6e2052572e4d93ed0dcaa2895aa1aa399f5",
        34: "556d82c0f2ae62b8907c05b3722be6e2052572e4d93ed0dcaa2895aa1aa399f5",
    },
    "nova.virt.libvirt.driver:LibvirtDriver.update_provider_tree": {
        32: "9345f05e448ff41941ea0c4eb93795246bbbdca6ecc2359b58cbd0c0405538ea",
        33: "36ea92f17f23de5a1886a1057830a7fafdc898b0bfd1803a8d7990578f6d4e20",
        34: "36ea92f17f23de5a1886a1057830a7fafdc898b0bfd1803a8d7990578f6d4e20",
    },
    "nova.weights:BaseWeigher._weigh_object": {
        32: "1e966d3754d46ad2282b8d3544a488dcde3ca7f29f497599a933c6abdb90c5ad",
        33: "1e966d3754d46ad2282b8d3544a488dcde3ca7f29f497599a933c6abdb90c5ad",
        34: "1e966d3754d46ad2282b8d3544a488dcde3ca7f29f497599a933c6abdb90c5ad",
    },
    "nova.weights:BaseWeigher.weigh_objects": {
        32: "86590249fb5253175a7a643201643e729b173a488a5c56cbfacac82e4abbdd6a",
        33: "86590249fb5253175a7a643201643e729b173a488a5c56cbfacac82e4abbdd6a",
        34: "86590249fb5253175a7a643201643e729b173a488a5c56cbfacac82e4abbdd6a",
    },
    "nova.weights:BaseWeigher.weight_multiplier": {
        32: "52f343ed7c7c8bfc1fa4395fd6b64fab779e411ce7b3af2be6fc6374ddffd114",
        33: "52f343ed7c7c8bfc1fa4395fd6b64fab779e411ce7b3af2be6fc6374ddffd114",
        34: "52f343ed7c7c8bfc1fa4395fd6b64fab779e411ce7b3af2be6fc6374ddffd114",
    },
}
