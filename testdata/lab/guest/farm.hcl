# What the lab's machine keeps.

variable "due" {
  type    = map(object({ at = string, policy = string }))
  default = {}
}

variable "churn" {
  type    = set(string)
  default = []
}

variable "word" {
  type    = string
  default = "first"
}

image "base" {
  source = "host"
}

network "farm" {
  cidr = "10.88.0.0/24"
}

volume "shared" {}

locals {
  count = ["/usr/local/bin/guest", "workload", "/count"]
}

# These write what they must not lose into their layers and volumes.
sandbox "claim" {
  image   = image.base
  command = concat(local.count, ["/work/count"])

  network {
    name = network.farm
  }
  port "count" {
    container = 7000
  }
  volume "work" {
    path = "/work"
  }
  lifetime {
    ttl = "52w"
  }
}

sandbox "shared" {
  image   = image.base
  command = concat(local.count, ["/work/count"])

  network {
    name = network.farm
  }
  port "count" {
    container = 7000
  }
  mount {
    volume = volume.shared
    path   = "/work"
  }
  lifetime {
    ttl = "52w"
  }
}

# Without a network: its port is the agent's.
sandbox "lonely" {
  image   = image.base
  command = local.count

  port "count" {
    container = 7000
  }
  lifetime {
    ttl = "52w"
  }
}

# What becomes of each when its process is lost.
sandbox "lost" {
  for_each = toset(["recreate-fresh", "retain", "delete"])
  image    = image.base
  command  = concat(local.count, ["/work/count"])

  network {
    name = network.farm
  }
  port "count" {
    container = 7000
  }
  volume "work" {
    path = "/work"
  }
  lifetime {
    on_lost = each.key
  }
}

sandbox "still" {
  for_each       = toset(["paused", "suspended"])
  image          = image.base
  command        = local.count
  operating_mode = each.key
}

# Ends by itself, once.
sandbox "done" {
  image   = image.base
  command = ["sh", "-c", "cat /proc/sys/kernel/random/boot_id >> /starts; exit 3"]
}

# Ends by itself at first. When it is started again by hand, it stays.
sandbox "again" {
  image   = image.base
  command = ["sh", "-c", "if [ -e /ended ]; then exec guest workload /count; fi; touch /ended; sync /ended; exit 3"]
}

# Operators act on these.
sandbox "verb" {
  for_each = toset(["0", "1"])
  image    = image.base
  command  = local.count

  network {
    name = network.farm
  }
  lifetime {
    ttl = "52w"
  }
}

# Its deadline lies ahead, or passes while the machine is off.
sandbox "due" {
  for_each        = var.due
  image           = image.base
  command         = local.count
  shutdown_time   = each.value.at
  shutdown_policy = each.value.policy
}

# Comes and goes.
sandbox "churn" {
  for_each = var.churn
  image    = image.base
  command  = local.count

  network {
    name = network.farm
  }
  volume "work" {
    path = "/work"
  }
}

# Changes with each apply.
sandbox "turn" {
  image   = image.base
  command = local.count
  env     = { WORD = var.word }
  labels  = { word = var.word }
}
