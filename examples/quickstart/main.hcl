# A first configuration: five sandboxes on the host's own image. It needs no
# download; everything is gone again after `pinfold destroy`.

variable "team" {
  type    = string
  default = "agents"
}

variable "job_ttl" {
  type        = string
  default     = "15s"
  description = "How long sandbox.job may live."
}

# The host's root, read-only underneath; each sandbox writes to its own layer.
image "base" {
  source = "host"
}

network "agents" {
  cidr     = "10.88.7.0/24"
  internet = false
}

# Data of its own, outliving every sandbox that mounts it.
volume "shared" {}

# Rules that several sandboxes have in common.
policy "untrusted" {
  resources {
    cpu    = 0.5
    memory = "256MiB"
    pids   = 128
  }
  security {
    user_namespace    = true
    drop_capabilities = ["NET_RAW", "MKNOD", "SYS_CHROOT", "AUDIT_WRITE"]
  }
}

# Two workers, each with a volume of its own.
sandbox "worker" {
  for_each = toset(["a", "b"])
  image    = image.base
  command  = ["sh", "-c", "while :; do date >> /work/log; echo \"$WHO is alive\"; sleep 1; done"]
  env      = { WHO = each.key, TEAM = var.team }
  labels   = { team = var.team }
  policies = [policy.untrusted]

  network {
    name = network.agents
  }
  volume "work" {
    path = "/work"
  }
  mount {
    volume    = volume.shared
    path      = "/shared"
    read_only = true
  }
}

# A service: reachable on a free port of the host, and by its address from the
# other sandboxes.
sandbox "web" {
  image    = image.base
  command  = ["perl", "/srv/hello.pl"]
  policies = [policy.untrusted]

  network {
    name = network.agents
  }
  port "http" {
    container = 8080
  }
  mount {
    volume = volume.shared
    path   = "/shared"
  }
  file "/srv/hello.pl" {
    content = file("hello.pl")
  }
}

# A client that learns the service's address when it exists.
sandbox "client" {
  image   = image.base
  command = ["sleep", "infinity"]
  env     = { WEB = "http://${sandbox.web.address}:8080" }

  network {
    name = network.agents
  }
}

# A job with a deadline: when it passes, the agent deletes the sandbox.
sandbox "job" {
  image           = image.base
  command         = ["sleep", "infinity"]
  policies        = [policy.untrusted]
  shutdown_policy = "delete"

  lifetime {
    ttl = var.job_ttl
  }
}

output "url" {
  value = "http://127.0.0.1:${sandbox.web.ports.http.host}"
}

output "workers" {
  value = { for name, s in sandbox.worker : name => s.address }
}
