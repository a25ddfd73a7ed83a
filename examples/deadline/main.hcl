# Three ways for a sandbox to end.
#
#   pinfold apply -var shutdown_time=2026-12-01T18:00:00Z
#   pinfold agent            # without it nothing watches the deadlines
#
# A deadline passes in real time; to watch one, try -var ttl=20s.

variable "shutdown_time" {
  type        = string
  default     = "never"
  description = "When sandbox.day ends: an RFC 3339 instant, or \"never\"."
}

variable "ttl" {
  type        = string
  default     = "1h"
  description = "How long sandbox.report and sandbox.scratch live, from their creation."
}

image "base" {
  source = "host"
}

locals {
  command = ["sh", "-c", "date > /result; exec sleep infinity"]
}

# Ends at an instant that only these files can move. Its files stay.
sandbox "day" {
  image         = image.base
  command       = local.command
  shutdown_time = var.shutdown_time
}

# Ends when its ttl is over. `retain`: the process goes, /result stays. A longer
# ttl, applied later, starts it again on the same files.
sandbox "report" {
  image           = image.base
  command         = local.command
  shutdown_policy = "retain"
  lifetime {
    ttl = var.ttl
  }
}

# `delete`: everything goes, and it stays ended while this block is here.
sandbox "scratch" {
  image           = image.base
  command         = local.command
  shutdown_policy = "delete"
  lifetime {
    ttl = var.ttl
  }
}
