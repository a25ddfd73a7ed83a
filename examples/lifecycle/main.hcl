# What a platform asks of a sandbox: rest while nobody uses it, wake for whoever
# comes, come back after a crash, and not go away at once when its time is up.
#
#   pinfold agent            # watches, probes, wakes; nothing of it happens without
#   pinfold apply
#   pinfold events -f        # in another terminal
#
# To see it rest soon: pinfold apply -var idle=5s

variable "idle" {
  type        = string
  default     = "15m"
  description = "How long a sandbox may go unused before it rests."
}

variable "ttl" {
  type        = string
  default     = "8h"
  description = "How long sandbox.shell lives before it is frozen for good, or until somebody comes."
}

image "base" {
  source = "host"
}

network "agents" {}

# Frozen while nobody uses it: exec and cp wake it where it was, memory and all. Use
# moves its deadline. When that passes it is frozen, and woken for one hour more by
# the next who comes.
sandbox "shell" {
  image           = image.base
  command         = ["sleep", "infinity"]
  shutdown_policy = "pause"
  lifetime {
    ttl              = var.ttl
    idle_timeout     = var.idle
    resume_on_access = true
    renew_on_access  = "1h"
  }
}

# No process and no memory while nobody asks: the first connection to its port starts
# it, and is answered.
sandbox "site" {
  image   = image.base
  command = ["perl", "/site.pl"]
  file "/site.pl" {
    content = file("site.pl")
  }
  network {
    name = network.agents
  }
  port "http" {
    container = 8080
  }
  lifetime {
    idle_timeout     = var.idle
    idle_action      = "suspend"
    resume_on_access = true
  }
  health {
    tcp      = 8080
    interval = "1s"
  }
}

# Starts again after each failure, five times in a row; half an hour without one
# begins a new series. It fails when somebody makes /fail.
sandbox "worker" {
  image   = image.base
  command = ["sh", "-c", "echo began >>/journal; until test -e /fail; do sleep 0.1; done; rm /fail; exit 1"]
  restart {
    mode         = "on-failure"
    max_attempts = 5
    window       = "30m"
    backoff_min  = "1s"
    backoff_max  = "1m"
  }
}

output "url" {
  value = "http://127.0.0.1:${sandbox.site.ports.http.host}/"
}
