package config

// Starter is the directory that `pinfold init` writes, by file name. It is
// valid as it stands and runs on the host image.
func Starter() map[string][]byte {
	return map[string][]byte{"main.hcl": []byte(starterMain)}
}

const starterMain = `# What should run on this host. Every *.hcl file of this directory counts, in
# any order. Try: pinfold validate, pinfold plan, pinfold apply, pinfold list.

pinfold {
  required_version = ">= 0.1"
}

# Set it with -var 'greeting=hi', in a file pinfold.pfvars, or by the
# environment variable PINFOLD_VAR_greeting.
variable "greeting" {
  type        = string
  default     = "hello"
  description = "What the sandboxes say."
}

# The host's own root file system, read-only underneath: nothing to download.
# Another root: source = "dir:./rootfs".
image "base" {
  source = "host"
}

# Sandboxes on one network reach each other. Set internet = true to let them
# leave the host.
network "agents" {
  internet = false
}

# Rules that several sandboxes share. A sandbox's own blocks win over them.
policy "small" {
  resources {
    cpu    = 0.5
    memory = "256MiB"
    pids   = 128
  }
  # Nothing here needs raw sockets. ["ALL"] drops the rest too, without which
  # even root inside can neither chown nor su.
  security {
    drop_capabilities = ["NET_RAW"]
  }
}

# One sandbox for each name.
sandbox "hello" {
  for_each = toset(["a", "b"])
  image    = image.base
  command  = ["sh", "-c", "echo \"$GREETING from $WHO\"; exec sleep infinity"]
  env = {
    GREETING = var.greeting
    WHO      = each.key
  }
  policies = [policy.small]

  network {
    name = network.agents
  }

  # Files here survive a restart of the sandbox and its replacement.
  volume "work" {
    path = "/srv/work"
  }

  # Ends eight hours after it was first made; its files are kept. Change it to
  # shutdown_policy = "delete" to remove everything then.
  shutdown_policy = "retain"
  lifetime {
    ttl = "8h"
  }
}

output "addresses" {
  value       = { for name, s in sandbox.hello : name => s.address }
  description = "The address of each sandbox on its network."
}
`
