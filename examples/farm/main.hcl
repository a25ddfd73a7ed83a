# A sandbox for each entry of a map, with common rules and a volume of its own.
#
#   pinfold apply -var 'workers={ ann = {}, bob = { memory = "512MiB" } }'
#
# A name that leaves the map is destroyed, with its volume; the others keep running.

variable "workers" {
  type = map(object({
    cpu    = optional(number, 0.25)
    memory = optional(string, "128MiB")
  }))
  default = {
    small = {}
    large = {
      cpu    = 0.5
      memory = "256MiB"
    }
  }
  description = "The workers by name, with what each may use."
}

image "base" {
  source = "host"
}

network "farm" {
  internet = false
}

policy "worker" {
  resources {
    pids = 64
  }
  security {
    drop_capabilities = ["ALL"]
  }
  lifetime {
    ttl = "8h"
  }
}

sandbox "worker" {
  for_each    = var.workers
  image       = image.base
  command     = ["sh", "-c", "echo \"$NAME began\" >> journal; exec sleep infinity"]
  env         = { NAME = each.key }
  working_dir = "/work"
  labels      = { role = "worker" }
  policies    = [policy.worker]

  # On top of the policy: its pids limit still holds.
  resources {
    cpu    = each.value.cpu
    memory = each.value.memory
  }
  network {
    name = network.farm
  }

  # Survives restart and replacement; goes when the worker is destroyed.
  volume "work" {
    path = "/work"
  }
}

output "addresses" {
  value       = { for name, worker in sandbox.worker : name => worker.address }
  description = "Where the workers reach each other."
}

output "network" {
  value = network.farm.cidr
}
