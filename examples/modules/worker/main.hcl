variable "image" {
  type = any
}

variable "network" {
  type = any
}

variable "policies" {
  type = any
}

variable "name" {
  type = string
}

variable "board" {
  type = string
}

sandbox "this" {
  image    = var.image
  command  = ["sh", "-c", "cat /etc/motd; exec sleep infinity"]
  env      = { BOARD = var.board }
  policies = var.policies

  network {
    name = var.network
  }
  file "/etc/motd" {
    content = templatefile("${path.module}/motd.tftpl", { name = var.name })
  }
}

output "address" {
  value = sandbox.this.address
}
