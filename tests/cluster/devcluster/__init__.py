"""Clusters for development and CI, and the images in them; standard library only.

```
up, down, images, tools   the four commands, in the folder above
  choice      which cluster: kind, local or current (pure)
  local       one node out of Go modules: brings it up, takes it down
    node        programs of the node, their command lines and configuration (pure)
    pki         certificates and kubeconfig files
    processes   starting, watching and killing by recorded process id
    network     bridge, sysctls, iptables rules
  kind        a kind cluster where Docker runs
  images      builds the product's images and loads them
    inputs      what an image is made of, as a hash; pip settings as build secrets
    engines     buildah or docker
  tools       Debian packages, go install, the Kubernetes binary
    state, steps, paths
```
"""
