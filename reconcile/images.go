package reconcile

import (
	"context"
	"path"
	"strings"

	"pinfold/reconcile/plan"
)

// ImagesResult is `image list -json`.
type ImagesResult struct {
	FormatVersion string      `json:"format_version"`
	Images        []ImageView `json:"images"`
}

// ImageView is an image on record, with who is made from it. Absent things are null.
type ImageView struct {
	Address        string       `json:"address"`
	Source         string       `json:"source"` // host, or dir:PATH
	Digest         *string      `json:"digest"` // what it was found to be when it was applied
	Path           *string      `json:"path"`   // its root on the host, links followed
	Hidden         *ImageHidden `json:"hidden"` // null: nothing is
	Users          []ImageUser  `json:"users"`
	PreventDestroy bool         `json:"prevent_destroy"`
}

// ImageHidden is what sandboxes do not see of the host's root, as it would be for one
// that is made now.
type ImageHidden struct {
	Absent []string `json:"absent"` // paths that are not there
	Empty  []string `json:"empty"`  // directories without their content
}

// ImageUser is a sandbox that is declared with an image.
type ImageUser struct {
	Sandbox    string     `json:"sandbox"`
	InstanceID *string    `json:"instance_id"`
	Phase      plan.Phase `json:"phase"`  // as it was last recorded
	Digest     *string    `json:"digest"` // of the image that the instance was made from; another one than the image's: the sandbox is replaced by the next apply
}

// ImageDescription is `image show -json`.
type ImageDescription struct {
	Image     ImageView `json:"image"`
	DependsOn []string  `json:"depends_on"`
	Events    []Event   `json:"events"` // the last 20, oldest first
}

// Images tells of all images on record, sorted by address.
func (e *Engine) Images(ctx context.Context) (*ImagesResult, error) {
	records := e.snapshot()
	all, err := e.imageViews(ctx, &records)
	if err != nil {
		return nil, err
	}
	return &ImagesResult{FormatVersion: "1", Images: all}, nil
}

// Image tells everything about one, by its address or a short name.
func (e *Engine) Image(ctx context.Context, word string) (*ImageDescription, error) {
	records := e.snapshot()
	all, err := e.imageViews(ctx, &records)
	if err != nil {
		return nil, err
	}
	v, err := meant(all, "image", word, func(v *ImageView) (string, string, string) { return v.Address, "image", "" })
	if err != nil {
		return nil, err
	}
	d := &ImageDescription{Image: *v, DependsOn: []string{}, Events: []Event{}}
	if rec := records.Images[v.Address]; rec != nil {
		d.DependsOn = append(d.DependsOn, rec.DependsOn...)
	}
	events, err := e.history(v.Address, 20)
	if err != nil {
		return nil, errorOf(err)
	}
	d.Events = append(d.Events, events...)
	return d, nil
}

func (e *Engine) imageViews(ctx context.Context, records *plan.Records) ([]ImageView, error) {
	var hidden *ImageHidden // the host's is the same for all
	all := []ImageView{}
	for _, address := range sortedKeys(records.Images) {
		rec := records.Images[address]
		v := ImageView{Address: address, Source: rec.Spec.Source, Users: []ImageUser{}, PreventDestroy: rec.Lifecycle.PreventDestroy}
		if rec.Digest != "" {
			v.Digest = pointer(rec.Digest)
		}
		src := imageSource(rec.Spec)
		switch src.Kind {
		case "dir":
			if real, ok := strings.CutPrefix(rec.Digest, "dir:"); ok {
				v.Path = pointer(real)
			} else {
				v.Path = pointer(path.Clean(src.Path))
			}
		case "host":
			v.Path = pointer("/")
			if hidden == nil {
				h, err := e.host.HiddenBy(ctx, src)
				if err != nil {
					return nil, errorOf(err)
				}
				hidden = &ImageHidden{Absent: append([]string{}, h.Absent...), Empty: append([]string{}, h.Empty...)}
			}
			v.Hidden = hidden
		}
		for _, user := range sortedKeys(records.Sandboxes) {
			s := records.Sandboxes[user]
			if s.Spec.Image != address {
				continue
			}
			u := ImageUser{Sandbox: user, Phase: phaseOf(s)}
			if s.Instance != nil {
				u.InstanceID = pointer(s.Instance.ID)
				if s.Instance.Image != "" {
					u.Digest = pointer(s.Instance.Image)
				}
			}
			v.Users = append(v.Users, u)
		}
		all = append(all, v)
	}
	return all, nil
}

func (c *Client) Images(ctx context.Context) (*ImagesResult, error) {
	return ask[ImagesResult](ctx, c, "images", nil)
}

func (c *Client) Image(ctx context.Context, name string) (*ImageDescription, error) {
	return ask[ImageDescription](ctx, c, "image", name)
}
