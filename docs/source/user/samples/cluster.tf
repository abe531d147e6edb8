# SPDX-License-Identifier: Apache-2.0
# A gang of four near each other, with OpenTofu (or Terraform). Servers are created one by
# one, so each says the server group and how many will come.

terraform {
  required_providers {
    openstack = {
      source  = "terraform-provider-openstack/openstack"
      version = ">= 2.0.0"
    }
  }
}

variable "members" {
  type    = number
  default = 4
}

variable "network_id" {
  type = string
}

# An ordinary network, by which you log in.
variable "login_network_id" {
  type = string
}

resource "openstack_compute_servergroup_v2" "train" {
  name     = "train"
  policies = ["soft-anti-affinity"]
}

# A port for each member, made before it: of type direct, on an InfiniBand network.
resource "openstack_networking_port_v2" "train" {
  count      = var.members
  name       = "train-${count.index + 1}"
  network_id = var.network_id

  binding {
    vnic_type = "direct"
  }
}

resource "openstack_compute_instance_v2" "train" {
  count       = var.members
  name        = "train-${count.index + 1}"
  image_name  = "debian-12"
  flavor_name = "hpc.gpu4.leaf"
  key_pair    = "alice"

  # The InfiniBand network has no DHCP: the address is in the configuration drive.
  config_drive = true

  network {
    uuid = var.login_network_id
  }

  network {
    port = openstack_networking_port_v2.train[count.index].id
  }

  scheduler_hints {
    group = openstack_compute_servergroup_v2.train.id
    additional_properties = {
      hpc_members = tostring(var.members)
    }
  }

  lifecycle {
    # A gang that grows keeps the members that it has.
    ignore_changes = [scheduler_hints]
  }
}
