# A service with a published port and a rendered configuration file, and a client
# that is given the service's address.
#
#   pinfold apply
#   pinfold output -raw url
#   pinfold logs client

variable "greeting" {
  type    = string
  default = "hello from the service"
}

image "base" {
  source = "host"
}

network "inner" {
  internet = false
}

sandbox "service" {
  image   = image.base
  command = ["perl", "/srv/server.pl", "/etc/service.conf"]

  network {
    name = network.inner
  }

  # host = 0: any free port of the host, on 127.0.0.1.
  port "http" {
    container = 8080
    host      = 0
  }

  # Files are read-only inside. A change of one restarts the process.
  file "/srv/server.pl" {
    content = file("server.pl")
  }
  file "/etc/service.conf" {
    content = templatefile("service.conf.tftpl", { port = 8080, greeting = var.greeting })
    mode    = "0600"
  }

  # A replacement is made beside it, has to answer, and is what the client asks
  # before the old one goes: pinfold apply -replace=sandbox.service
  health {
    tcp      = 8080
    interval = "1s"
  }
  lifecycle {
    create_before_destroy = true
    postcondition {
      condition     = self.address != null
      error_message = "The client needs an address to ask."
    }
  }
}

# Made after the service, whose address it refers to.
sandbox "client" {
  image   = image.base
  command = ["perl", "/srv/client.pl", sandbox.service.address, "8080"]

  network {
    name = network.inner
  }
  file "/srv/client.pl" {
    content = file("client.pl")
  }
}

check "port" {
  assert {
    condition     = sandbox.service.ports.http.host >= 1024
    error_message = "The service is at a port that is another program's by custom."
  }
}

output "url" {
  value       = "http://127.0.0.1:${sandbox.service.ports.http.host}"
  description = "The service, as the host reaches it."
}
